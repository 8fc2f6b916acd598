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
from bridge.protocols.client import ClientProtocol
from bridge.protocols.registry import PROTOCOLS, turn_paths
from bridge.server.conversations import MAX_ITEMS, ConversationPages
from bridge.server.dispatch import ByProtocol, PageHandler, Routes, ShowPage, require_upgrade
from bridge.server.pages import DEFAULT_DAYS, Pages
from bridge.server.responses import ResponsePages
from bridge.server.turns import TokenCounter, TurnEndpoint
from bridge.server.websocket import ResponsesSocket
from bridge.store.base import USAGE_DAYS

if TYPE_CHECKING:
    from bridge.cap.endpoint import AssistEndpoint

_UUID = {"type": "string", "format": "uuid"}
_RESPONSE = Parameter("path", "id", "The id of a response of this key.")
_CONVERSATION = Parameter("path", "id", "The id of a conversation of this key.")
_ITEM = Parameter("path", "item", "The id of an item of the conversation.")
_MODEL = Parameter("path", "model", "The name of the model; it may contain slashes.", example="mock-echo")
_REQUEST = Parameter("path", "request_id", "The `request_id` of an earlier request of this key.", _UUID)
_STREAM = Parameter(
    "query",
    "stream",
    "A stored response cannot be streamed: `true` is refused.",
    {"type": "boolean", "default": False},
)
_DAYS = Parameter(
    "query",
    "days",
    "The number of days, including today.",
    {"type": "integer", "minimum": 1, "maximum": USAGE_DAYS, "default": DEFAULT_DAYS},
)
_LIST = (
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
_PROVIDER_KEY = Parameter(
    "header",
    "x-provider-key",
    "A key for the model's provider, for this request only: a backend that uses a provider over HTTP sends it instead "
    "of its own. It is never logged, stored or sent elsewhere.",
    {"type": "string", "pattern": "^[!-~]+$"},
)
_LAST_EVENT_ID = Parameter(
    "header",
    "Last-Event-ID",
    "The id of the last packet that arrived: REQUEST_ID:NUMBER, or REQUEST_ID:ATTEMPT:NUMBER.",
)

_TURN_ERRORS = (404, 500, 502, 503, 504)
_STORED_ERRORS = (404, 503)
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


def build_app(service: Service, *, fault: Callable[[], str | None], started_at: int) -> Routes:
    """Everything that is served, without the gate. `fault` returns what is wrong with the bridge itself."""
    cap = lazy_endpoint(service)

    async def openapi(request: PageRequest) -> Page:
        return Page(routes.description)

    table = _table(service, Pages(service, fault, started_at, time), cap, openapi)
    routes = Routes(
        table, {"/v1/responses": ResponsesSocket(service), SOCKET_PATH: lambda request: cap().socket(request)}
    )
    return routes


def _path_parameters(path: str) -> tuple[Parameter, ...]:
    return (_MODEL,) if "{model" in path else ()


def _each(
    page: Callable[[ShowPage], Handler], show: Callable[[ClientProtocol, PageRequest], Awaitable[Page]]
) -> dict[str, Handler]:
    """The handlers of a page for the protocols that list models in a form of their own."""
    protocols = (protocol for protocol in PROTOCOLS.values() if protocol.model_list is not None)
    return {protocol.name: page(partial(show, protocol)) for protocol in protocols}


def _table(service: Service, pages: Pages, cap: Callable[[], AssistEndpoint], openapi: ShowPage) -> list[Route]:
    responses = ResponsePages(service)
    conversations = ConversationPages(service.store, service.new_id, enabled=service.keeps_responses)
    page = partial(PageHandler, max_body=service.max_body)
    turn = partial(Route, "POST", parameters=(_PROVIDER_KEY,), errors=_TURN_ERRORS, runs_turn=True)
    response = partial(Route, tag="Responses", errors=_STORED_ERRORS)
    conversation = partial(Route, tag="Conversations", errors=_STORED_ERRORS)
    get = partial(Route, "GET")
    probe = partial(Route, "GET", tag="Health", needs_key=False)
    return [
        *(
            turn(
                variant.path,
                TurnEndpoint(protocol, service, variant.members),
                variant.operation,
                protocol.summary,
                f"{protocol.description} {_HELD}",
                parameters=(*_path_parameters(variant.path), _PROVIDER_KEY),
                body=protocol.name,
                answer=variant.answer or protocol.answer,
                streams=variant.members.get("stream") is not False,
                tag=protocol.tag,
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
                parameters=(*_path_parameters(variant.path), _PROVIDER_KEY),
                body=protocol.name,
                answer=count.answer,
                errors=_STORED_ERRORS,
                tag=protocol.tag,
            )
            for protocol in PROTOCOLS.values()
            if (count := protocol.token_count) is not None
            for variant in count.variants
        ),
        turn(
            "/v1/responses/compact",
            page(responses.compact),
            "compactResponse",
            "Summarize a conversation",
            "The model writes a summary. Send the `output` of the answer as the start of the next `input`.",
            body="CompactRequest",
            answer="Compaction",
            tag="Responses",
        ),
        response(
            "POST",
            "/v1/responses/input_tokens",
            page(responses.input_tokens),
            "countInputTokens",
            "Estimate the tokens of a request",
            "There is no tokenizer: this is an estimate of four bytes per token.",
            parameters=(_PROVIDER_KEY,),
            body="responses",
            answer="InputTokens",
        ),
        response(
            "GET",
            "/v1/responses/{id}",
            page(responses.retrieve),
            "getResponse",
            "Get a response",
            "A response in progress has what was written so far.",
            parameters=(_RESPONSE, _STREAM),
            answer="Response",
        ),
        response(
            "DELETE",
            "/v1/responses/{id}",
            page(responses.delete),
            "deleteResponse",
            "Delete a response",
            "A response in progress is then not stored; one in the background is ended.",
            parameters=(_RESPONSE,),
            answer="DeletedResponse",
        ),
        response(
            "POST",
            "/v1/responses/{id}/cancel",
            page(responses.cancel),
            "cancelResponse",
            "End a response in progress",
            "A response that has ended is returned unchanged. A body is ignored.",
            parameters=(_RESPONSE,),
            answer="Response",
        ),
        response(
            "GET",
            "/v1/responses/{id}/input_items",
            page(responses.input_items),
            "listInputItems",
            "List the input of a response",
            "All items that the response answers, including those of the responses before it.",
            parameters=(_RESPONSE, *_LIST),
            answer="ItemList",
        ),
        Route(
            "POST",
            "/v1/conversations",
            page(conversations.create),
            "createConversation",
            "Create a conversation",
            "A request names it in `conversation`. Without a body it is empty.",
            body="NewConversation",
            answer="Conversation",
            errors=(503,),
            tag="Conversations",
        ),
        conversation(
            "GET",
            "/v1/conversations/{id}",
            page(conversations.retrieve),
            "getConversation",
            "Get a conversation",
            parameters=(_CONVERSATION,),
            answer="Conversation",
        ),
        conversation(
            "POST",
            "/v1/conversations/{id}",
            page(conversations.update),
            "updateConversation",
            "Replace the metadata of a conversation",
            parameters=(_CONVERSATION,),
            body="ConversationUpdate",
            answer="Conversation",
        ),
        conversation(
            "DELETE",
            "/v1/conversations/{id}",
            page(conversations.delete),
            "deleteConversation",
            "Delete a conversation",
            parameters=(_CONVERSATION,),
            answer="DeletedConversation",
        ),
        conversation(
            "GET",
            "/v1/conversations/{id}/items",
            page(conversations.list_items),
            "listConversationItems",
            "List the items of a conversation",
            parameters=(_CONVERSATION, *_LIST),
            answer="ItemList",
        ),
        conversation(
            "POST",
            "/v1/conversations/{id}/items",
            page(conversations.add_items),
            "addConversationItems",
            "Add items to a conversation",
            f"At most {MAX_ITEMS} at once. The answer has only the added items.",
            parameters=(_CONVERSATION,),
            body="NewItems",
            answer="ItemList",
        ),
        conversation(
            "GET",
            "/v1/conversations/{id}/items/{item}",
            page(conversations.retrieve_item),
            "getConversationItem",
            "Get an item",
            parameters=(_CONVERSATION, _ITEM),
            answer="Item",
        ),
        conversation(
            "DELETE",
            "/v1/conversations/{id}/items/{item}",
            page(conversations.delete_item),
            "deleteConversationItem",
            "Delete an item",
            parameters=(_CONVERSATION, _ITEM),
            answer="Conversation",
        ),
        get(
            "/v1/models",
            ByProtocol(page(pages.models), _each(page, pages.models_of)),
            "listModels",
            "List the models",
            "The models of Codex and of the operator, the mock models and, unless they are hidden, aliases and "
            "suffixes for reasoning efforts. Without a login for Codex, only the mock models. With the header "
            "`anthropic-version` in Anthropic's format, with its `limit`, `after_id` and `before_id`.",
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
            if (path := protocol.models_path) is not None
            for route in (
                get(
                    path,
                    page(partial(pages.models_of, protocol)),
                    f"list{protocol.tag}Models",
                    "List the models",
                    answer=f"{protocol.tag}Models",
                    tag=protocol.tag,
                ),
                get(
                    f"{path}/{{model:path}}",
                    page(partial(pages.model_of, protocol)),
                    f"get{protocol.tag}Model",
                    "Get a model",
                    parameters=(_MODEL,),
                    answer=f"{protocol.tag}Model",
                    errors=(404,),
                    tag=protocol.tag,
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
