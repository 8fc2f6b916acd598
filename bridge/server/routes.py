"""The route table: every path, its handler, and its description in /openapi.json."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from time import time
from typing import TYPE_CHECKING

from bridge.app.service import Service
from bridge.cap import ASSIST_PATHS, SOCKET_PATH, lazy_endpoint
from bridge.http.pages import Page, PageRequest
from bridge.http.request import Handler, Parameter, Route
from bridge.protocols.client import ClientProtocol, ModelForm
from bridge.protocols.registry import PROTOCOLS, turn_paths
from bridge.server.conversations import ConversationPages
from bridge.server.dispatch import (
    PROVIDER_KEY,
    STORED_ERRORS,
    TURN_ERRORS,
    ByProtocol,
    MakeHandler,
    PageHandler,
    Routes,
    ShowPage,
    require_upgrade,
)
from bridge.server.pages import DEFAULT_DAYS, Pages
from bridge.server.responses import ResponsePages
from bridge.server.turns import TokenCounter, TurnEndpoint
from bridge.server.websocket import ResponsesSocket
from bridge.store.base import USAGE_DAYS

if TYPE_CHECKING:
    from bridge.cap.endpoint import AssistEndpoint

_UUID = {"type": "string", "format": "uuid"}
_MODEL = Parameter("path", "model", "The name of the model; it may contain slashes.", example="mock-echo")
_REQUEST = Parameter("path", "request_id", "The `request_id` of an earlier request of this key.", _UUID)
_DAYS = Parameter(
    "query",
    "days",
    "The number of days, including today.",
    {"type": "integer", "minimum": 1, "maximum": USAGE_DAYS, "default": DEFAULT_DAYS},
)
_LAST_EVENT_ID = Parameter(
    "header",
    "Last-Event-ID",
    "The id of the last packet that arrived: REQUEST_ID:NUMBER, or REQUEST_ID:ATTEMPT:NUMBER.",
)

_CAP_ERRORS = (402, 404, 406, 409, 410, 422, 500, 502, 503, 504)

_HELD = (
    "The status is held back until the first piece of the answer, for at most two seconds, so that an early failure is "
    "an HTTP error; a later failure is an event of the stream."
)
_ASSIST = (
    "`Accept` chooses the format of the answer: complete (`application/json`, or anything), or a stream of packets "
    "(`text/event-stream`, or NDJSON under any of its names). Unknown members are ignored and named in "
    "`x-bridge-dropped`. Repeating a request attaches to its answer while that is stored. A WebSocket at "
    "/v1/assist/ws accepts a ServiceRequest as its first message and sends one packet per message."
)


def build_app(
    service: Service, *, fault: Callable[[], str | None], started_at: int, page: Handler | None = None
) -> Routes:
    """Everything that is served, without the gate. `fault` returns what is wrong with the bridge itself.

    `page` answers the requests for the live page.
    """
    cap = lazy_endpoint(service)

    async def openapi(request: PageRequest) -> Page:
        return Page(routes.description)

    table = _table(service, Pages(service, fault, started_at, time), cap, openapi)
    routes = Routes(
        table, {"/v1/responses": ResponsesSocket(service), SOCKET_PATH: lambda request: cap().socket(request)}, page
    )
    return routes


def _path_parameters(path: str) -> tuple[Parameter, ...]:
    return (_MODEL,) if "{model" in path else ()


def _model_forms() -> list[ModelForm]:
    return [protocol.models for protocol in PROTOCOLS.values() if protocol.models is not None]


def _each(page: MakeHandler, show: Callable[[ClientProtocol, PageRequest], Awaitable[Page]]) -> dict[str, Handler]:
    """The handlers of a page for the protocols that list models in a form of their own."""
    protocols = (protocol for protocol in PROTOCOLS.values() if protocol.models is not None)
    return {protocol.name: page(partial(show, protocol)) for protocol in protocols}


def _table(service: Service, pages: Pages, cap: Callable[[], AssistEndpoint], openapi: ShowPage) -> list[Route]:
    responses = ResponsePages(service)
    conversations = ConversationPages(service.store, service.new_id, enabled=service.keeps_responses)
    page = partial(PageHandler, max_body=service.max_body)
    turn = partial(Route, "POST", parameters=(PROVIDER_KEY,), errors=TURN_ERRORS, runs_turn=True)
    get = partial(Route, "GET")
    probe = partial(Route, "GET", tag="Health", needs_key=False)
    return [
        *(
            turn(
                variant.path,
                TurnEndpoint(protocol, service, variant.members),
                variant.operation,
                protocol.api.summary,
                f"{protocol.api.description} {_HELD}",
                parameters=(*_path_parameters(variant.path), PROVIDER_KEY),
                body=protocol.name,
                answer=variant.answer or protocol.api.answer,
                streams=variant.members.get("stream") is not False,
                tag=protocol.api.tag,
            )
            for protocol in PROTOCOLS.values()
            for variant in turn_paths(protocol)
        ),
        *(
            Route(
                "POST",
                variant.path,
                page(TokenCounter(protocol, count, service)),
                variant.operation,
                count.summary,
                "There is no tokenizer: this is an estimate of four bytes per token.",
                parameters=(*_path_parameters(variant.path), PROVIDER_KEY),
                body=protocol.name,
                answer=count.answer,
                errors=STORED_ERRORS,
                tag=protocol.api.tag,
            )
            for protocol in PROTOCOLS.values()
            if (count := protocol.token_count) is not None
            for variant in count.variants
        ),
        *responses.routes(page),
        *conversations.routes(page),
        get(
            "/v1/models",
            ByProtocol(page(pages.models), _each(page, pages.models_of)),
            "listModels",
            "List the models",
            "The models of Codex and of the operator, the mock models and, unless they are hidden, aliases and "
            "suffixes for reasoning efforts. Without a login for Codex, only the mock models. "
            + " ".join(form.note for form in _model_forms() if form.note),
            answer="Models",
            tag="Models",
        ),
        get(
            "/v1/models/{model:path}",
            ByProtocol(page(pages.model), _each(page, pages.model_of)),
            "getModel",
            "Get a model",
            parameters=(_MODEL,),
            answer="OneModel",
            errors=(404,),
            tag="Models",
        ),
        *(
            route
            for protocol in PROTOCOLS.values()
            if protocol.models is not None and (path := protocol.models.path) is not None
            for route in (
                get(
                    path,
                    page(partial(pages.models_of, protocol)),
                    f"list{protocol.api.tag}Models",
                    "List the models",
                    answer=protocol.models.page_schema,
                    tag=protocol.api.tag,
                ),
                get(
                    f"{path}/{{model:path}}",
                    page(partial(pages.model_of, protocol)),
                    f"get{protocol.api.tag}Model",
                    "Get a model",
                    parameters=(_MODEL,),
                    answer=protocol.models.schema,
                    errors=(404,),
                    tag=protocol.api.tag,
                ),
            )
        ),
        get(
            "/v1/usage",
            page(pages.usage),
            "getUsage",
            "Get the usage of this key",
            "By day (UTC) and model, and in total.",
            parameters=(_DAYS,),
            answer="UsageReport",
            errors=(503,),
            tag="Usage",
        ),
        get(
            "/v1/rate-limits",
            page(pages.rate_limits),
            "getRateLimits",
            "Get what is left of the account's quota",
            answer="RateLimits",
            tag="Usage",
        ),
        *(
            get(
                path,
                page(pages.codex_usage),
                name,
                "Get the account's quota in the form of Codex",
                "What the Codex CLI requests to show its limits.",
                answer="CodexUsage",
                tag="Usage",
            )
            for path, name in (("/api/codex/usage", "getCodexUsage"), ("/backend-api/wham/usage", "getWhamUsage"))
        ),
        get(
            "/metrics",
            page(service.metrics.page),
            "getMetrics",
            "Metrics for Prometheus",
            "The text format, version 0.0.4. docs/operations.md lists the names.",
            tag="Usage",
        ),
        probe(
            "/healthz",
            page(pages.health),
            "getHealthz",
            "Whether the program runs, and its state",
            "200 while the program runs; `reason` says why it is degraded.",
            answer="Health",
        ),
        probe("/livez", page(pages.live), "getLivez", "Whether the program runs", answer="Alive"),
        probe(
            "/readyz", page(pages.ready), "getReadyz", "Whether turns are accepted", answer="Ready", statuses=(200, 503)
        ),
        probe("/openapi.json", page(openapi), "getOpenApi", "This document", answer="OpenApi"),
        *(
            Route(
                "POST",
                path,
                lambda request: cap().post(request),
                name,
                "Invoke the agent",
                _ASSIST,
                tag="CAP",
                parameters=(_LAST_EVENT_ID,),
                body="ServiceRequest",
                answer="ServiceResponse",
                streams=True,
                errors=_CAP_ERRORS,
                runs_turn=True,
            )
            for path, name in zip(ASSIST_PATHS, ("assist", "assistAtRoot", "assistUnderCap"), strict=True)
        ),
        Route(
            "GET",
            f"{ASSIST_PATHS[0]}/{{request_id}}",
            lambda request: cap().resume(request),
            "resumeAssist",
            "Attach to an answer again",
            "The packets after the one that `Last-Event-ID` names, or all of them, then those to come. `Accept` "
            "chooses the format.",
            parameters=(_REQUEST, _LAST_EVENT_ID),
            streams=True,
            errors=_CAP_ERRORS,
            runs_turn=True,
            tag="CAP",
        ),
        Route(
            "DELETE",
            f"{ASSIST_PATHS[0]}/{{request_id}}",
            page(lambda request: cap().cancel(request)),
            "cancelAssist",
            "End an answer in progress",
            parameters=(_REQUEST,),
            answer="Cancellation",
            statuses=(202,),
            errors=(404, 410, 422),
            is_limited=False,
            tag="CAP",
        ),
        Route(
            "GET",
            SOCKET_PATH,
            require_upgrade,
            "assistOverWebSocket",
            "Connect with a WebSocket",
            "The first message is a ServiceRequest; each packet of its answer is a message.",
            statuses=(101,),
            errors=(426,),
            tag="CAP",
        ),
        *(
            Route(
                "GET",
                path,
                page(pages.cap_health),
                name,
                "The health of the service",
                "`ok`, `degraded`, or `maintenance` (503) while it accepts no new requests.",
                tag="CAP",
                answer="HealthCheckResponse",
                statuses=(200, 503),
                needs_key=False,
            )
            for path, name in (("/health", "getHealth"), ("/v1/health", "getHealthV1"))
        ),
    ]
