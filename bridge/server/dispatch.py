"""From a path to its handler, and errors in the format of the protocol that the path speaks."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from urllib.parse import parse_qsl

import orjson
import trio

from bridge import __version__
from bridge.cap import speaks_cap
from bridge.errors import BridgeError, InvalidRequest
from bridge.http.pages import Page, PageRequest, error_page, provider_key, send_page
from bridge.http.request import ClientGone, Handler, Headers, Parameter, Request, Route
from bridge.page.sessions import is_of_page
from bridge.protocols.client import ClientProtocol
from bridge.protocols.registry import PROTOCOLS, protocol_of

ShowPage = Callable[[PageRequest], Awaitable[Page]]
MakeHandler = Callable[[ShowPage], Handler]
"""Makes the handler of a page."""

TURN_ERRORS = (404, 500, 502, 503, 504)
STORED_ERRORS = (404, 503)
"""The statuses of errors of a route that runs a turn, and of one that reads the store."""
PROVIDER_KEY = Parameter(
    "header",
    "x-provider-key",
    "A key for the model's provider, for this request only: a backend that uses a provider over HTTP sends it instead "
    "of its own. It is never logged, stored or sent elsewhere.",
    {"type": "string", "pattern": "^[!-~]+$"},
)
LIST = (
    Parameter(
        "query",
        "limit",
        "The number of items to return.",
        {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    ),
    Parameter(
        "query",
        "order",
        "`desc`: the newest first.",
        {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    ),
    Parameter("query", "after", "The id of an item of this list: return only what follows it."),
    Parameter("query", "before", "The id of an item of this list: return only what precedes it."),
)
"""The parameters of a list."""


class Routes:
    """Dispatches requests by the route table, and WebSockets by their paths. `page` answers the paths of the live page.

    Those are internal, and not described: they change with the page.
    """

    def __init__(self, table: Iterable[Route], sockets: Mapping[str, Handler], page: Handler | None = None) -> None:
        self.table = tuple(table)
        self.sockets = sockets
        self._page = page
        self.patterns: dict[str, dict[str, Handler]] = {}
        """Handlers by pattern and method."""
        for route in self.table:
            self.patterns.setdefault(route.pattern, {})[route.method] = route.handler
        self._variable = [(_expression(pattern), pattern) for pattern in self.patterns if "{" in pattern]

    def __call__(self, request: Request) -> Awaitable[object]:
        # Not a coroutine: a stream would keep its frame for as long as it lasts.
        if len(request.path) > 1:
            # Some clients end every path with a slash. The gate has checked the path as the client sent it.
            request.path = request.path.removesuffix("/")
        if request.socket is not None:
            return self.sockets.get(request.path, _not_found)(request)
        if self._page is not None and is_of_page(request.path):
            return self._page(request)
        methods = self._find(request)
        if methods is None:
            return _not_found(request)
        # HEAD is a GET whose body the connection leaves out.
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is not None:
            return handler(request)
        allowed = ", ".join(sorted(methods))
        error = InvalidRequest(
            f"Method not allowed. {request.path} supports {allowed}.", code="method_not_allowed", http_status=405
        )
        return refuse(request, error, [(b"allow", allowed.encode())])

    @cached_property
    def description(self) -> bytes:
        """The OpenAPI document. Built once: it needs no key, so a request for it must cost nothing."""
        from bridge.protocols.openapi.document import document  # large, and rarely needed

        return orjson.dumps(document(__version__, self.table))

    def _find(self, request: Request) -> Mapping[str, Handler] | None:
        path = request.path
        if "{" not in path and path in self.patterns:
            request.route = path
            return self.patterns[path]
        for expression, pattern in self._variable:
            if (found := expression.fullmatch(path)) is not None:
                request.route, request.params = pattern, found.groupdict()
                return self.patterns[pattern]
        return None


def _expression(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression. Only its braces have a meaning there."""
    return re.compile(
        re.sub(r"\{(\w+)(:path)?\}", lambda part: f"(?P<{part[1]}>{'.+' if part[2] else '[^/]+'})", pattern)
    )


class PageHandler:
    """A handler that sends a page."""

    def __init__(self, show: ShowPage, max_body: int) -> None:
        self._show = show
        self._max_body = max_body

    async def __call__(self, request: Request) -> None:
        page: Page | None = None
        # A page may run a model: it is cancelled when its client disconnects.
        with trio.CancelScope() as showing:
            try:
                own_key = provider_key(request)
                body = await request.read_body(self._max_body) if request.method == "POST" else b""
                request.on_gone(showing.cancel)
                query = dict(parse_qsl(request.query.decode("latin-1")))
                page = await self._show(PageRequest(request.path, request.params, query, request.key, body, own_key))
            except ClientGone:
                return
            except BridgeError as error:
                page = refusal(request, error)
        if page is not None:
            await send_page(request, page)


# Errors


def refusal(request: Request, error: BridgeError, headers: Headers = ()) -> Page:
    """The error as a page in the format of the client's protocol; OpenAI's if that is not known."""
    request.refused = error.code
    if speaks_cap(request.path):
        from bridge.cap.endpoint import cap_error_page

        return cap_error_page(request, error, headers)
    protocol = protocol_of(request.path, request.headers)
    return error_page(error, headers) if protocol is None else protocol_error_page(protocol, error, headers)


def protocol_error_page(protocol: ClientProtocol, error: BridgeError, headers: Headers = ()) -> Page:
    """The error as a page of this protocol."""
    return replace(error_page(error, headers, protocol.errors.body(error)), status=protocol.errors.status(error))


class ByProtocol:
    """The handler of a path that protocols share: the client's protocol chooses one of `others`, or else `usual`."""

    def __init__(self, usual: Handler, others: Mapping[str, Handler]) -> None:
        self._usual = usual
        self._others = others

    def __call__(self, request: Request) -> Awaitable[object]:
        protocol = protocol_of(request.path, request.headers)
        handler = self._usual if protocol is None else self._others.get(protocol.name, self._usual)
        return handler(request)


async def refuse(request: Request, error: BridgeError, headers: Headers = ()) -> None:
    """Answer a request with an error."""
    await send_page(request, refusal(request, error, headers))


async def require_upgrade(request: Request) -> None:
    """The handler of a path that is only a WebSocket."""
    error = InvalidRequest(
        f"{request.path} is a WebSocket. Connect with a WebSocket client.", code="upgrade_required", http_status=426
    )
    await refuse(request, error, [(b"upgrade", b"websocket")])


_HINTS = {
    "/v1/completions": "Text completions are not supported. Use POST /v1/chat/completions "
    "(in an editor, configure a chat model, not edit predictions).",
    "/v1/embeddings": "Codex has no embeddings. Configure another provider for them.",
    "/chat/completions": "The base URL must end in /v1: POST /v1/chat/completions.",
    "/responses": "The base URL must end in /v1: POST /v1/responses.",
    "/models": "The base URL must end in /v1: GET /v1/models.",
}
for _protocol in PROTOCOLS.values():
    _HINTS |= _protocol.hints


async def _not_found(request: Request) -> None:
    path = request.path
    if path.startswith("/v1/v1/"):
        hint = "The client appends /v1 to a base URL that already ends in /v1: remove /v1 from the base URL."
    elif path.startswith("/v1/"):
        hint = "GET /openapi.json lists all paths, such as POST /v1/responses and POST /v1/chat/completions."
    else:
        hint = "The base URL must end in /v1."
    message = _HINTS.get(path) or f"Unknown path {path[:100]}. {hint}"
    await refuse(request, InvalidRequest(message, code="not_found", http_status=404))
