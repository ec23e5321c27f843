"""How the watching processes of several hosts speak: each with that of rank 0's host, over TCP.

A message is signed (HMAC-SHA256) with a key that rank 0 has drawn and the ranks have passed on over
their process group, and is numbered, so that none is taken twice. Who connects to the port without
the key is heard no further. This is as strong as the network on which the ranks meet: torch's store
and gloo neither encrypt nor know whom they speak with, so whoever reads that traffic, or pretends
to be a rank as the ranks meet, has the key. The ranks of one host need no network for this at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from lightning_gaudi.untrusted import parse_json

MAX_BYTES = 256 * 1024
"""How large a message may be."""

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
_SIGNATURE_BYTES = hashlib.sha256().digest_size
_AGAIN_S = 1.0
_STRANGER_S = 5.0
_MAX_STRANGERS = 16
_BACKLOG = 4096
"""All hosts connect at the same moment; the kernel cuts it to what the system allows."""
_FAREWELL_S = 1.0
_POLL_S = 0.05


class Channel:
    """One connection, for which nobody waits.

    Args:
        connection: To another host's watching process, or to a stranger.
        key: What messages are signed with.
    """

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        connection.setblocking(False)
        self._connection, self._key = connection, key
        self._incoming, self._outgoing = bytearray(), bytearray()
        self.since = time.monotonic()
        self.host: int | None = None
        """The host that has signed what came, once something has come."""
        self.is_open = True

    def send(self, data: bytes) -> None:
        """Sends what `_signed` made as fast as the network takes it; drops it while far behind."""
        if self.is_open and len(self._outgoing) + len(data) < 4 * MAX_BYTES:
            self._outgoing += data
            self.flush()

    def flush(self) -> None:
        """Sends what is left."""
        try:
            while self._outgoing and self.is_open:
                del self._outgoing[: self._connection.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def receive(self) -> Iterator[Message]:
        """Returns the messages that have come whole; one that is not signed ends the connection."""
        try:
            while self.is_open and len(self._incoming) <= MAX_BYTES:
                if not (data := self._connection.recv(65536)):
                    self.close()
                self._incoming += data
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        try:
            yield from self._messages()
        except ValueError:
            self._incoming.clear()
            self.close()

    def _messages(self) -> Iterator[Message]:
        while len(self._incoming) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming)
            if not _SIGNATURE_BYTES < length <= MAX_BYTES:
                raise ValueError("This is no message.")
            end = _LENGTH.size + length
            if len(self._incoming) < end:
                return
            data = bytes(self._incoming[_LENGTH.size : end])
            del self._incoming[:end]
            text = data[_SIGNATURE_BYTES:]
            if not hmac.compare_digest(data[:_SIGNATURE_BYTES], _signature(self._key, text)):
                raise ValueError("This is signed with another key.")
            message = parse_json(text)
            if not isinstance(message, dict):
                raise ValueError("This is no message.")
            yield message

    def say_last(self) -> None:
        """Tells the other side that nothing more comes, once all is sent."""
        self.flush()
        if self.is_open and not self._outgoing:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the connection."""
        self.is_open = False
        self._connection.close()


def _signed(key: bytes, message: Message) -> bytes:
    text = json.dumps(message).encode()
    data = _signature(key, text) + text
    return _LENGTH.pack(len(data)) + data


def _signature(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


class Links:
    """All connections of a host's watching process.

    Args:
        key: What messages are signed with, on all hosts.
        host: The number of this host; that of rank 0's is 0.
        num_hosts: How many there are.
        listener: On host 0, where the others connect to; None where there is one host.
        address: On the others, where that is.
    """

    def __init__(
        self,
        key: bytes,
        host: int,
        num_hosts: int,
        listener: socket.socket | None = None,
        address: tuple[str, int] | None = None,
    ) -> None:
        self._key, self._host, self._num_hosts = key, host, num_hosts
        self._listener, self._address = listener, address
        self._channels: list[Channel] = []
        self._number = 0
        self._last: dict[int, int] = {}
        self._tried_at = -_AGAIN_S
        if listener is not None:
            listener.setblocking(False)

    def send(self, message: Message) -> None:
        """Sends a message to the hosts that this one is connected with."""
        self._number += 1
        message = {**message, "host": self._host, "number": self._number}
        data = _signed(self._key, message)
        for channel in self._channels:
            if self._host or channel.host is not None:
                channel.send(data)

    def receive(self) -> list[tuple[int, Message]]:
        """Connects anew if need be, and returns what has come, with the host that it is from."""
        self._connect()
        found = []
        for channel in self._channels:
            channel.flush()
            for message in channel.receive():
                host = self._host_of(message)
                if host is not None:
                    channel.host = host
                    found.append((host, message))
        now = time.monotonic()
        for channel in self._channels:
            if channel.host is None and self._host == 0 and now - channel.since > _STRANGER_S:
                channel.close()
        self._channels = [channel for channel in self._channels if channel.is_open]
        return found

    def _host_of(self, message: Message) -> int | None:
        """Returns the host that has sent a message, unless one as new as this was taken before."""
        host, number = message.get("host"), message.get("number")
        if type(host) is not int or type(number) is not int:
            return None
        is_other = 0 <= host < self._num_hosts and host != self._host
        if not is_other or number <= self._last.get(host, 0):
            return None
        self._last[host] = number
        return host

    def _connect(self) -> None:
        if self._listener is not None:
            unknown = sum(channel.host is None for channel in self._channels)
            expected = max(_MAX_STRANGERS, self._num_hosts - 1 - len(self._channels) + unknown)
            with contextlib.suppress(OSError):
                for _ in range(unknown, expected):
                    self._channels.append(Channel(self._listener.accept()[0], self._key))
        elif self._address is not None and not self._channels:
            if time.monotonic() - self._tried_at < _AGAIN_S:
                return
            self._tried_at = time.monotonic()
            with contextlib.suppress(OSError):
                self._channels.append(Channel(_connection_to(self._address), self._key))

    def finish(self, message: Message) -> None:
        """Sends a last message, and waits a moment for the others to have taken it."""
        self.send(message)
        end = time.monotonic() + _FAREWELL_S
        while self._channels and time.monotonic() < end:
            for channel in self._channels:
                channel.say_last()
            self._channels = [each for each in self._channels if not _has_ended(each)]
            time.sleep(_POLL_S)
        for channel in self._channels:
            channel.close()


def _has_ended(channel: Channel) -> bool:
    for _ in channel.receive():
        pass
    return not channel.is_open


def _connection_to(address: tuple[str, int]) -> socket.socket:
    """Returns a connection that is being made; whether it comes about is seen when it is used."""
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    family, kind, protocol, _, place = found[0]
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        connection.connect(place)
    return connection


def listen(address: str, *, is_one_machine: bool) -> socket.socket:
    """Returns a socket to which the watching processes of other hosts connect.

    Args:
        address: Rank 0's, under which the other ranks have found it.
        is_one_machine: Whether all hosts are containers of one machine. Else an address that only
            this machine has, as some give their own name, is not what the others see.

    Raises:
        OSError: Nobody can listen there.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    if str(place[0]).startswith(("127.", "::1")) and not is_one_machine:
        place = ("::" if family == socket.AF_INET6 else "0.0.0.0", 0)
    listener = socket.socket(family, kind, protocol)
    listener.bind(place)
    listener.listen(_BACKLOG)
    return listener
