"""A request as its handler sees it: what was asked, and the way back to the client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bridge.http.head import Head
    from bridge.http.websocket import WebSocket

Headers = Sequence[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The client has left before its request was whole."""


class Channel(Protocol):
    """What carries an answer: a connection, or memory."""

    async def read_body(self, limit: int) -> bytes:
        """The whole body. Raises BridgeError when it is too large or too slow, ClientGone when its client leaves."""

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Have `callback` called when the client leaves; at once if it has left. The body has been read."""

    def start(self, status: int, headers: Headers) -> None:
        """Status and headers; they go out with the first bytes of the body."""

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """The next bytes of the body; with none, the head alone goes out.

        There is no error when the client has left: `on_gone` tells that.
        """


class Request:
    """One request. The gate and the routes fill in what they know of it."""

    # A stream that waits should cost little.
    __slots__ = (
        "_channel",
        "answer_headers",
        "headers",
        "key",
        "max_body",
        "method",
        "params",
        "path",
        "query",
        "refused",
        "route",
        "scheme",
        "socket",
        "status",
        "subprotocols",
    )

    def __init__(self, head: Head, channel: Channel, scheme: str = "http", socket: WebSocket | None = None) -> None:
        self.method = head.method
        self.path = head.path
        self.query = head.query
        self.headers = head.headers
        self.scheme = scheme
        self.socket = socket
        """The WebSocket that is asked for. Until it is accepted, the request can be answered as any other."""
        self.subprotocols: list[str] = []
        """What a WebSocket offers."""
        self._channel = channel
        self.key = ""
        """The label of the client's key."""
        self.max_body: int | None = None
        """The limit of bodies that the client's key sets."""
        self.route: str | None = None
        """The pattern that the path matches."""
        self.params: Mapping[str, str] = {}
        """The variable parts of the path."""
        self.refused: str | None = None
        """The code of the error that the request was refused with, without a turn."""
        self.status: int | None = None
        """The answer's."""
        self.answer_headers: list[tuple[bytes, bytes]] = []
        """Further headers of the answer, for those that it does not name itself."""

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header (names are lower case)."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def has_body(self) -> bool:
        """Whether a body follows the head."""
        return self.header(b"transfer-encoding") is not None or self.header(b"content-length") not in (None, b"0")

    async def read_body(self, limit: int) -> bytes:
        """See Channel. The client's key may set a lower limit."""
        return await self._channel.read_body(limit if self.max_body is None else min(limit, self.max_body))

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """See Channel."""
        self._channel.on_gone(callback)

    def start(self, status: int, headers: Headers) -> None:
        """See Channel."""
        self.status = status
        if self.answer_headers:
            named = {name for name, _ in headers}
            headers = [*headers, *(each for each in self.answer_headers if each[0] not in named)]
        self._channel.start(status, headers)

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """See Channel."""
        await self._channel.send(data, last=last)


Handler = Callable[[Request], Awaitable[object]]
"""Answers a request."""
