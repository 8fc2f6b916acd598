"""The HTTP application: routes, and what stands behind them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from time import time
from typing import Any
from urllib.parse import parse_qsl

import trio
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute

from bridge.errors import BridgeError, InvalidRequest
from bridge.server.cap.app import CapApp, CapSocket
from bridge.server.cap.places import PLACES, SOCKET
from bridge.server.conversations import ConversationPages
from bridge.server.http import (
    ROUTE,
    ClientGone,
    Page,
    Receive,
    Request,
    Scope,
    Send,
    cancel_when_gone,
    key_label,
    provider_key,
    read_whole_body,
    send_page,
    send_page_early,
)
from bridge.server.pages import Pages
from bridge.server.refusals import refusal, refuse
from bridge.server.responses import ResponsePages
from bridge.server.service import Service
from bridge.server.turns import TurnEndpoint
from bridge.server.websocket import ResponsesSocket

ShowPage = Callable[[Request], Awaitable[Page]]
Asgi = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


def build_app(service: Service, *, fault: Callable[[], str | None], started_at: int) -> Any:
    """The ASGI application, without the gate. `fault` tells what is wrong with the bridge itself."""
    pages = Pages(service, fault, started_at, time)
    responses = ResponsePages(service)
    conversations = ConversationPages(service.store, service.new_id, enabled=service.keeps_responses)
    assist = CapApp(service)
    turns: dict[str, dict[str, Asgi]] = {
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
    cancel = _Shown(assist.cancel, service.max_body)
    turns[SOCKET] = {"GET": _upgrade}
    turns["/v1/assist/{request_id}"] = {"GET": assist.resume, "DELETE": cancel}
    routes: list[BaseRoute] = [
        WebSocketRoute("/v1/responses", ResponsesSocket(service)),
        WebSocketRoute(SOCKET, CapSocket(assist, service)),
    ]
    routes += [_Place(path, methods) for path, methods in turns.items()]
    routes += [
        _Place(path, {method: _Shown(show, service.max_body) for method, show in methods.items()})
        for path, methods in shown.items()
    ]
    return Routes(routes, redirect_slashes=False, default=_not_found)


class Routes(Router):
    """Who answers on which path."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        if len(scope["path"]) > 1:
            # Some clients end every path with a slash. The gate has let the request in under its own spelling.
            scope["path"] = scope["path"].removesuffix("/")
        return self.app(scope, receive, send)  # there is nothing in between


class _Place(Route):
    """A path and what each method does there."""

    def __init__(self, path: str, methods: dict[str, Asgi]) -> None:
        super().__init__(path, _nothing)
        self._handlers = methods

    def handle(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        # No frame of its own: a stream may wait in it for long.
        scope[ROUTE] = self.path
        # HEAD is a GET whose body the HTTP layer leaves out.
        handler = self._handlers.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if handler is None:
            allowed = sorted(self._handlers)
            error = InvalidRequest(
                f"{scope['path']} takes {', '.join(allowed)} only.", code="method_not_allowed", http_status=405
            )
            return refuse(scope, receive, send, error, [(b"allow", ", ".join(allowed).encode())])
        return handler(scope, receive, send)


class _Shown:
    """A page as an ASGI application."""

    def __init__(self, show: ShowPage, max_body: int) -> None:
        self._show = show
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            own_key = provider_key(scope)
            body = await read_whole_body(scope, receive, self._max_body) if scope["method"] == "POST" else b""
        except ClientGone:
            return
        except BridgeError as error:
            await send_page_early(send, receive, refusal(scope, error))
            return
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        request = Request(scope["path"], scope["path_params"], query, key_label(scope), body, own_key)
        answer: Page | None = None
        async with trio.open_nursery() as nursery:
            # A page may take a model's time: nobody waits for it any more when its client has left.
            nursery.start_soon(cancel_when_gone, receive, nursery.cancel_scope)
            try:
                answer = await self._show(request)
            except BridgeError as error:
                answer = refusal(scope, error)
            nursery.cancel_scope.cancel()
        if answer is not None:
            await send_page(send, answer)


async def _upgrade(scope: Scope, receive: Receive, send: Send) -> None:
    error = InvalidRequest(
        f"{scope['path']} is a WebSocket: connect to it as one.", code="upgrade_required", http_status=426
    )
    await refuse(scope, receive, send, error, [(b"upgrade", b"websocket")])


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("a place handles its requests itself")


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


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope["path"]
    known = "GET /openapi.json lists what is served: POST /v1/responses, POST /v1/chat/completions and others."
    hint = known if path.startswith("/v1/") else "The base URL ends in /v1."
    if path.startswith("/v1/v1/"):
        hint = "The client appends /v1 to a base URL that already ends in /v1: remove /v1 from the base URL."
    message = _ELSEWHERE.get(path) or f"There is no {path[:100]} here. {hint}"
    await refuse(scope, receive, send, InvalidRequest(message, code="not_found", http_status=404))
