"""Connects the watching process of each host with that of rank 0's host, over TCP.

Each message is signed (HMAC-SHA256) with a key that rank 0 has drawn and that the ranks have passed
on over their process group. It is also numbered, so that none is taken twice. A connection that
sends anything without the key is closed.

This is as safe as the network on which the ranks meet. torch's store and gloo neither encrypt nor
authenticate, so whoever reads that traffic, or pretends to be a rank there, has the key. The ranks
of a single host need no network for this at all.
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
"""The largest size of a message."""

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
_SIGNATURE_BYTES = hashlib.sha256().digest_size
_AGAIN_S = 1.0
_STRANGER_S = 5.0
_MAX_STRANGERS = 16
_BACKLOG = 4096
"""Has room for all hosts, which connect at the same moment; the kernel has a limit of its own."""
_FAREWELL_S = 1.0
_POLL_S = 0.05


class Channel:
    """One connection, whose reads and writes never block.

    Args:
        connection: Leads to another host's watching process, or to a stranger.
        key: The key that signs messages.
    """

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        connection.setblocking(False)
        self._connection, self._key = connection, key
        self._incoming, self._outgoing = bytearray(), bytearray()
        self.since = time.monotonic()
        self.host: int | None = None
        """The host on the other side; None until a message with a valid signature has come."""
        self.is_open = True

    def send(self, data: bytes) -> None:
        """Sends what `_signed` made, as fast as the network takes it.

        While much is still unsent it drops the message: a newer one says the same with newer
        figures.
        """
        if self.is_open and len(self._outgoing) + len(data) < 4 * MAX_BYTES:
            self._outgoing += data
            self.flush()

    def flush(self) -> None:
        """Sends what is still unsent, as far as the network takes it now."""
        try:
            while self._outgoing and self.is_open:
                del self._outgoing[: self._connection.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def receive(self) -> Iterator[Message]:
        """Yields the messages that are complete; an invalid signature ends the connection."""
        try:
            # A limit, so that a stranger who sends without end cannot fill the memory.
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
        """Tells the other side that nothing more comes, as soon as everything has been sent."""
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
    """Holds all connections of a host's watching process.

    Args:
        key: The key that signs messages on all hosts.
        host: The number of this host; rank 0's host has the number 0.
        num_hosts: The number of hosts.
        listener: The socket that the others connect to, on host 0; None with a single host.
        address: The address of that socket, on the other hosts.
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
        """Sends a message to all hosts that are connected with this one."""
        self._number += 1
        message = {**message, "host": self._host, "number": self._number}
        data = _signed(self._key, message)
        for channel in self._channels:
            # Host 0 sends nothing to a stranger, who has not signed anything yet.
            if self._host or channel.host is not None:
                channel.send(data)

    def receive(self) -> list[tuple[int, Message]]:
        """Returns the messages that have come, each with its host; connects again if necessary."""
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
        """Returns the host that has sent a message; None if it is not newer than the last one."""
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
            # Strangers may hold a few places and no more, so that every host still finds one.
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
        """Sends a last message, and waits for a moment until the others have taken it."""
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
    """Returns a connection without waiting for it; its first use fails if it was refused."""
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
        address: Rank 0's address, at which the other ranks have found it.
        is_one_machine: Whether all hosts are containers of one machine.

    Raises:
        OSError: It is not possible to listen there.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    # Some machines resolve their own name to a loopback address, which other machines cannot reach.
    if str(place[0]).startswith(("127.", "::1")) and not is_one_machine:
        place = ("::" if family == socket.AF_INET6 else "0.0.0.0", 0)
    listener = socket.socket(family, kind, protocol)
    listener.bind(place)
    listener.listen(_BACKLOG)
    return listener
