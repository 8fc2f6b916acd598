"""The HTTP application: routes, and what stands behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.routing import Router as Routes

from bridge.api.chat.events import ChatEncoder
from bridge.api.chat.request import parse_chat
from bridge.api.responses.events import ResponsesEncoder
from bridge.api.responses.request import parse_responses
from bridge.api.responses.response import echo_of
from bridge.backends.router import Router
from bridge.errors import BridgeError, InvalidRequest, ModelNotFound
from bridge.server.http import Receive, Scope, Send, refuse
from bridge.server.turns import NewId, Protocol, Service, TurnEndpoint
from bridge.turn.turn import Turn


def _responses_encoder(data: dict[str, Any], turn: Turn, new_id: NewId, created_at: int) -> ResponsesEncoder:
    return ResponsesEncoder(echo_of(data, turn), new_id, created_at=created_at, streaming=bool(turn.stream))


def _chat_encoder(data: dict[str, Any], turn: Turn, new_id: NewId, created_at: int) -> ChatEncoder:
    return ChatEncoder(
        turn.requested_model,
        new_id,
        created_at=created_at,
        include_usage=turn.include_usage,
        streaming=bool(turn.stream),
    )


RESPONSES = Protocol(parse_responses, _responses_encoder)
CHAT = Protocol(parse_chat, _chat_encoder)


def build_app(service: Service, *, fault: Callable[[], str | None], started_at: int) -> Any:
    """The ASGI application, without the gate. `fault` tells what is wrong with the bridge itself."""
    pages = _Pages(service.router, fault, started_at)
    return Routes(
        [
            _Only("/v1/responses", TurnEndpoint(RESPONSES, service), methods=["POST"]),
            _Only("/v1/chat/completions", TurnEndpoint(CHAT, service), methods=["POST"]),
            _Only("/v1/models", pages.models, methods=["GET"]),
            _Only("/v1/models/{model:path}", pages.model, methods=["GET"]),
            _Only("/healthz", pages.health, methods=["GET"]),
            _Only("/livez", pages.live, methods=["GET"]),
            _Only("/readyz", pages.ready, methods=["GET"]),
        ],
        redirect_slashes=False,
        default=_not_found,
    )


class _Only(Route):
    """A route that answers a wrong method in OpenAI's form."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.methods and scope["method"] not in self.methods:
            allowed = ", ".join(sorted(self.methods - {"HEAD"}))
            error = InvalidRequest(f"{scope['path']} takes {allowed} only.", code="method_not_allowed", http_status=405)
            await refuse(scope, receive, send, error, [(b"allow", ", ".join(sorted(self.methods)).encode())])
        else:
            await self.app(scope, receive, send)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope["path"]
    known = "Served are POST /v1/responses, POST /v1/chat/completions and GET /v1/models."
    hint = known if path.startswith("/v1/") else "The base URL ends in /v1."
    message = f"There is no {path[:100]} here. {hint}"
    await refuse(scope, receive, send, InvalidRequest(message, code="not_found", http_status=404))


class _Pages:
    """Everything that is not a turn."""

    def __init__(self, router: Router, fault: Callable[[], str | None], started_at: int) -> None:
        self._router = router
        self._fault = fault
        self._started_at = started_at

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._entry(name) for name in self._router.models()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name.lower() not in {known.lower() for known in self._router.models()}:
            return _error(ModelNotFound(name, self._router.models()), 404)
        return _json(self._entry(name))

    async def health(self, request: Request) -> Response:
        """Alive, and in which state. Always 200 while the program runs; readiness is another question."""
        ready, reason = self._status()
        fault = self._fault()
        return _json({"status": "ok" if ready and fault is None else "degraded", "reason": fault or reason})

    async def live(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        ready, reason = self._status()
        return _json({"status": "ready" if ready else "not_ready", "reason": reason}, 200 if ready else 503)

    def _status(self) -> tuple[bool, str]:
        """The state's name alone: its explanation may hold paths, and probes carry no key."""
        if self._fault() == "shutdown_initiated":
            return False, "shutdown_initiated"
        backend = self._router.codex or self._router.mock
        ready, reason = backend.status()
        return ready, reason.partition(":")[0]

    def _entry(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started_at, "owned_by": "codex-bridge"}


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _error(error: BridgeError, status: int | None = None) -> Response:
    return _json(error.body(), status or error.http_status)
