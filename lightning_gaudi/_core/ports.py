"""Whether a process may listen at a port."""

from __future__ import annotations

import errno
import socket


def why_not_listen(port: int) -> str | None:
    """Returns why this process cannot listen at a port of all its interfaces, or None if it can.

    Args:
        port: The number of the port.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            # As torch does: a port whose last connections linger is free.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", port))
            server.listen()
    except (OSError, OverflowError) as error:
        is_used = getattr(error, "errno", None) == errno.EADDRINUSE
        return "is in use by another program" if is_used else f"cannot be listened on ({error})"
    return None
