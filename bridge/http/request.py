"""A request as its handler sees it: what the client sent, the channel for the answer, and the route that it took."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from bridge.http.head import Head
    from bridge.http.websocket import WebSocket

Headers = Sequence[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The client left before its request was complete."""


class Sink(Protocol):
    """Takes an answer: a request, or a recorder in place of a client."""

    def start(self, status: int, headers: Headers) -> None:
        """Status and headers; they go out with the first bytes of the body."""

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """The next bytes of the body; with none, the head alone goes out.

        It is not an error if the client has left: `Channel.on_gone` reports that.
        """


class Channel(Sink, Protocol):
    """What carries an answer: a connection, or memory."""

    async def read_body(self, limit: int) -> bytes:
        """The whole body. Raises BridgeError when it is too large or too slow, ClientGone when its client leaves."""

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Have `callback` called when the client leaves; at once if it has left. The body has been read."""


# No repr: its headers have the client's key.
@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One request. The gate and the routes fill in what they know about it."""

    head: InitVar[Head]
    _channel: Channel
    scheme: str = "http"
    socket: WebSocket | None = None
    """The WebSocket that is requested. Until it is accepted, the request can be answered like any other."""
    method: str = field(init=False)
    path: str = field(init=False)
    query: bytes = field(init=False)
    headers: Headers = field(init=False)
    subprotocols: Sequence[str] = ()
    """What a WebSocket offers."""
    key: str = ""
    """The label of the client's key."""
    max_body: int | None = None
    """The limit that the client's key sets for bodies."""
    route: str | None = None
    """The pattern that the path matches."""
    params: Mapping[str, str] = field(default_factory=dict)
    """The variable parts of the path."""
    refused: str | None = None
    """The code of the error that the request was refused with, without a turn."""
    status: int | None = None
    """The answer's."""
    answer_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Further headers of the answer, unless it has them itself."""

    def __post_init__(self, head: Head) -> None:
        self.method, self.path, self.query, self.headers = head.method, head.path, head.query, head.headers

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
        self._channel.on_gone(callback)

    def start(self, status: int, headers: Headers) -> None:
        self.status = status
        if self.answer_headers:
            named = {name for name, _ in headers}
            headers = [*headers, *(each for each in self.answer_headers if each[0] not in named)]
        self._channel.start(status, headers)
        # A stream may wait for long; what the client sent is not needed any more.
        self.headers, self.answer_headers = (), []

    async def send(self, data: bytes, *, last: bool = False) -> None:
        await self._channel.send(data, last=last)


Handler = Callable[[Request], Awaitable[object]]
"""Answers a request."""


# The table of routes: what answers a request, and what the OpenAPI description says about it

STRING: Mapping[str, Any] = {"type": "string"}


class Parameter(NamedTuple):
    """A parameter of a route; `schema` is a JSON Schema."""

    location: str
    """path, query or header."""
    name: str
    description: str
    schema: Mapping[str, Any] = STRING
    example: str | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    `{name}` in the pattern stands for one segment of the path, `{name:path}` for all that follow.
    """

    method: str
    pattern: str
    handler: Handler
    name: str
    """OpenAPI's operationId."""
    summary: str
    description: str = ""
    _: KW_ONLY
    tag: str
    parameters: tuple[Parameter, ...] = ()
    body: str | None = None
    """What the client sends: a protocol, or a name in `bridge.protocols.openapi.requests.BODIES`."""
    answer: str | None = None
    """The name of the schema of a JSON answer; None if the answer is not JSON."""
    streams: bool = False
    """Whether the answer can be a stream."""
    statuses: tuple[int, ...] = (200,)
    """Statuses of the answer."""
    errors: tuple[int, ...] = ()
    """Statuses of errors, in addition to those that every route with this method has."""
    runs_turn: bool = False
    needs_key: bool = True
    is_limited: bool = True
    """Whether the limits of a key apply."""
