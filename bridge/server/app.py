"""The HTTP application: routes, and what stands behind them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from time import time
from urllib.parse import parse_qsl

import trio

from bridge.errors import BridgeError, InvalidRequest
from bridge.http.request import ClientGone, Handler, Request
from bridge.server.cap.app import CapApp, CapSocket
from bridge.server.cap.places import PLACES, SOCKET
from bridge.server.conversations import ConversationPages
from bridge.server.http import Page, PageRequest, provider_key, send_page
from bridge.server.pages import Pages
from bridge.server.refusals import refusal, refuse
from bridge.server.responses import ResponsePages
from bridge.server.service import Service
from bridge.server.turns import TurnEndpoint
from bridge.server.websocket import ResponsesSocket

ShowPage = Callable[[PageRequest], Awaitable[Page]]


def build_app(service: Service, *, fault: Callable[[], str | None], started_at: int) -> Routes:
    """Everything that is served, without the gate. `fault` tells what is wrong with the bridge itself."""
    pages = Pages(service, fault, started_at, time)
    responses = ResponsePages(service)
    conversations = ConversationPages(service.store, service.new_id, enabled=service.keeps_responses)
    assist = CapApp(service)
    turns: dict[str, dict[str, Handler]] = {
        "/v1/responses": {"POST": TurnEndpoint("responses", service)},
        "/v1/chat/completions": {"POST": TurnEndpoint("chat", service)},
        **{path: {"POST": assist.post} for path in PLACES},
    }
    shown: dict[str, dict[str, ShowPage]] = {
        "/v1/responses/compact": {"POST": responses.compact},
        "/v1/responses/input_tokens": {"POST": responses.input_tokens},
        "/v1/responses/{id}": {"GET": responses.retrieve, "DELETE": responses.delete},
        "/v1/responses/{id}/cancel": {"POST": responses.cancel},
        "/v1/responses/{id}/input_items": {"GET": responses.input_items},
        "/v1/conversations": {"POST": conversations.create},
        "/v1/conversations/{id}": {
            "GET": conversations.retrieve,
            "POST": conversations.update,
            "DELETE": conversations.delete,
        },
        "/v1/conversations/{id}/items": {"GET": conversations.list_items, "POST": conversations.add_items},
        "/v1/conversations/{id}/items/{item}": {
            "GET": conversations.retrieve_item,
            "DELETE": conversations.delete_item,
        },
        "/v1/models": {"GET": pages.models},
        "/v1/models/{model:path}": {"GET": pages.model},
        "/v1/usage": {"GET": pages.usage},
        "/v1/rate-limits": {"GET": pages.rate_limits},
        "/metrics": {"GET": service.metrics.page},
        "/healthz": {"GET": pages.health},
        "/livez": {"GET": pages.live},
        "/readyz": {"GET": pages.ready},
        "/health": {"GET": pages.cap_health},
        "/v1/health": {"GET": pages.cap_health},
        "/openapi.json": {"GET": pages.openapi},
    }
    turns[SOCKET] = {"GET": _upgrade}
    turns["/v1/assist/{request_id}"] = {"GET": assist.resume, "DELETE": _Shown(assist.cancel, service.max_body)}
    sockets: dict[str, Handler] = {"/v1/responses": ResponsesSocket(service), SOCKET: CapSocket(assist, service)}
    pages_shown = {
        path: {method: _Shown(show, service.max_body) for method, show in methods.items()}
        for path, methods in shown.items()
    }
    return Routes({**turns, **pages_shown}, sockets)


class Routes:
    """Which handler answers on which path: by pattern and method, and by path for WebSockets.

    `{name}` in a pattern stands for one part of a path, `{name:path}` for all that follow.
    """

    def __init__(self, patterns: Mapping[str, Mapping[str, Handler]], sockets: Mapping[str, Handler]) -> None:
        self.patterns = patterns
        self.sockets = sockets
        self._variable = [(_expression(pattern), pattern) for pattern in patterns if "{" in pattern]

    def __call__(self, request: Request) -> Awaitable[object]:
        # Not a coroutine of its own: a stream may wait in it for long.
        if len(request.path) > 1:
            # Some clients end every path with a slash. The gate has let the request in under its own spelling.
            request.path = request.path.removesuffix("/")
        if request.socket is not None:
            return self.sockets.get(request.path, _not_found)(request)
        methods = self._find(request)
        if methods is None:
            return _not_found(request)
        # HEAD is a GET whose body the connection leaves out.
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is not None:
            return handler(request)
        allowed = ", ".join(sorted(methods))
        error = InvalidRequest(f"{request.path} takes {allowed} only.", code="method_not_allowed", http_status=405)
        return refuse(request, error, [(b"allow", allowed.encode())])

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
    """The pattern as a regular expression. Nothing in ours but the braces has a meaning there."""
    return re.compile(
        re.sub(r"\{(\w+)(:path)?\}", lambda part: f"(?P<{part[1]}>{'.+' if part[2] else '[^/]+'})", pattern)
    )


class _Shown:
    """A page as a handler."""

    def __init__(self, show: ShowPage, max_body: int) -> None:
        self._show = show
        self._max_body = max_body

    async def __call__(self, request: Request) -> None:
        answer: Page | None = None
        # A page may take a model's time: it is given up when its client has left.
        with trio.CancelScope() as showing:
            try:
                own_key = provider_key(request)
                body = await request.read_body(self._max_body) if request.method == "POST" else b""
                request.on_gone(showing.cancel)
                query = dict(parse_qsl(request.query.decode("latin-1")))
                asked = PageRequest(request.path, request.params, query, request.key, body, own_key)
                answer = await self._show(asked)
            except ClientGone:
                return
            except BridgeError as error:
                answer = refusal(request, error)
        if answer is not None:
            await send_page(request, answer)


async def _upgrade(request: Request) -> None:
    error = InvalidRequest(
        f"{request.path} is a WebSocket: connect to it as one.", code="upgrade_required", http_status=426
    )
    await refuse(request, error, [(b"upgrade", b"websocket")])


_ELSEWHERE = {
    "/v1/completions": "Text completions are not served: use POST /v1/chat/completions "
    "(in an editor, the setting for chat models and not the one for edit predictions).",
    "/v1/embeddings": "Codex has no embeddings: point that setting at another provider.",
    "/chat/completions": "The base URL ends in /v1: POST /v1/chat/completions.",
    "/responses": "The base URL ends in /v1: POST /v1/responses.",
    "/models": "The base URL ends in /v1: GET /v1/models.",
}
_ELSEWHERE |= dict.fromkeys(
    ("/v1/messages", "/v1/messages/count_tokens", "/v1/v1/messages"),
    "Anthropic's Messages API is not served here. Use a client of OpenAI's API: "
    "POST /v1/chat/completions or POST /v1/responses.",
)


async def _not_found(request: Request) -> None:
    path = request.path
    known = "GET /openapi.json lists what is served: POST /v1/responses, POST /v1/chat/completions and others."
    hint = known if path.startswith("/v1/") else "The base URL ends in /v1."
    if path.startswith("/v1/v1/"):
        hint = "The client appends /v1 to a base URL that already ends in /v1: remove /v1 from the base URL."
    message = _ELSEWHERE.get(path) or f"There is no {path[:100]} here. {hint}"
    await refuse(request, InvalidRequest(message, code="not_found", http_status=404))
