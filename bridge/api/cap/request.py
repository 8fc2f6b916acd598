"""POST /v1/assist: a ServiceRequest becomes a Turn, and what the server has to know besides.

Messages of errors name places, never what stood there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from uuid import UUID

import orjson
from pydantic import ValidationError

from bridge.api.cap.envelope import AgentRequest, Identity, ServiceRequest, SessionContext
from bridge.api.cap.failures import InvalidMessage, invalid_message
from bridge.api.cap.files import read_files
from bridge.api.cap.meta import Meta, read_meta
from bridge.api.cap.rules import AssistRules
from bridge.api.items import read_items
from bridge.errors import Forbidden, InvalidRequest, ModelNotFound
from bridge.turn.items import Message, OutputFormat, Part, Text
from bridge.turn.models import ModelChoice
from bridge.turn.turn import Turn

MAX_NAMES = 32
_ID = re.compile(r"[!-~]{1,256}")
_ODD = re.compile(r"[^!-+\--~]")
"""What would break a list of names in a header."""


@dataclass(frozen=True, slots=True)
class Assist:
    """A request, read. `turn` lacks what only the server knows: its session, and whether it is streamed."""

    request: ServiceRequest
    turn: Turn
    conversation: str | None
    """The conversation that it continues, or begins under this name; None for a new one without a name."""
    events: frozenset[str]
    """The events that the client asks for, besides those that all get."""
    timeout: float
    """Seconds that the turn may take."""
    narrowed: Mapping[str, str]
    """Of sandbox, approval_policy and cwd those that are to be narrower than the operator's.

    Whoever cannot hold the turn to them refuses the request.
    """
    ignored: tuple[str, ...]
    """Names of what was not looked at, fit for a header."""

    @property
    def request_id(self) -> UUID:
        """The envelope's id: the key for attaching to a turn again."""
        return self.request.request_id

    @property
    def fingerprint(self) -> str:
        """The same for requests that say the same; another one under the same id is a conflict."""
        return self.request.compute_hash()

    @property
    def owner(self) -> str:
        """Whose conversations these are, for this client's key: a digest of the user's id and the session's."""
        return owner_of(self.request.context)

    @property
    def traceparent(self) -> str | None:
        """The W3C trace that the request belongs to, where its header says nothing: the root's."""
        root = self.request.payload.root_request_id
        span = self.request.request_id.hex[:16]
        return f"00-{root.hex}-{span}-01" if root is not None and root.int and int(span, 16) else None


def owner_of(context: SessionContext) -> str:
    """A digest of who asks, in which session."""
    return blake2b(orjson.dumps([context.user.id, context.session_id]), digest_size=16).hexdigest()


def read_request(data: Any) -> ServiceRequest:
    """A body as a ServiceRequest. Raises InvalidMessage, which tells every fault's place."""
    try:
        return ServiceRequest.model_validate(data)
    except ValidationError as error:
        raise invalid_message("ServiceRequest", error) from None


def check_caller(request: ServiceRequest, caller: str | None) -> None:
    """Refuse a request in somebody else's name. `caller` is who the client has proven to be; None: nobody knows.

    Who is "" is nobody, and may not ask under any name.
    """
    if caller is not None and (not caller or request.context.user.id != caller):
        raise Forbidden("'context.user.id' is not who this client is.", param="context.user.id")


def parse_assist(
    request: ServiceRequest,
    resolve: Callable[[str], ModelChoice],
    rules: AssistRules,
    context: Sequence[dict[str, Any]] = (),
    *,
    data: Mapping[str, Any] | None = None,
) -> Assist:
    """The Turn of a request; `context` are the items of the conversation that it continues.

    `data` is the body that the request was read from, to tell which of its members were ignored. Raises BridgeErrors,
    with the status of each.
    """
    payload = request.payload
    conversation = conversation_of(request)
    meta = _meta(request, rules)
    images = read_files(payload.files)
    blank = not payload.query.strip()
    if blank and not images:
        raise _unprocessable("'payload.query' is empty: ask something.", "payload.query", "empty_query")
    said: tuple[Part, ...] = images if blank else (Text(payload.query), *images)
    model = _model(request, meta, resolve, rules)
    instructions = "\n\n".join(text for text in (meta.instructions, meta.context_line) if text)
    turn = Turn(
        endpoint="responses",
        model=model.effective,
        backend=model.backend,
        provider=model.provider,
        requested_model=model.requested,
        items=(*read_items(context, "previous"), Message("user", said)),
        instructions=instructions or None,
        effort=meta.effort or model.effort,
        summary=meta.summary,
        output_format=_format(meta),
        include_usage=True,
    )
    return Assist(
        request=request,
        turn=turn,
        conversation=conversation,
        events=meta.events,
        timeout=_time_limit(meta, rules),
        narrowed=meta.narrowed,
        ignored=tuple(_fit(name) for name in (*_unknown_members(data or {}), *meta.ignored)[:MAX_NAMES]),
    )


def time_limit(request: ServiceRequest, rules: AssistRules) -> float:
    """Seconds that the turn of a request may take. Raises BridgeErrors, as `parse_assist` does."""
    return _time_limit(_meta(request, rules), rules)


def conversation_of(request: ServiceRequest) -> str | None:
    """The conversation's name, checked: it stands in a header. An empty one is none."""
    payload, place = request.payload, "payload.conversation_id"
    if payload.session_id is not None and payload.session_id != request.context.session_id:
        raise _unprocessable(
            "'payload.session_id' and 'context.session_id' differ: a request belongs to one session.",
            "payload.session_id",
            "session_mismatch",
        )
    if payload.conversation_id and not _ID.fullmatch(payload.conversation_id):
        raise _unprocessable(f"Invalid {place!r}: 1 to 256 visible ASCII characters.", place, "invalid_conversation_id")
    return payload.conversation_id or None


def wanted_model(request: ServiceRequest, rules: AssistRules) -> str | None:
    """The name of the model that a request leads to, as far as it can be told before anything has been checked."""
    meta, agent = request.payload.meta, request.context.agent
    own = meta.get("codex")
    named = (own.get("model") if isinstance(own, dict) else None) or meta.get("model")
    preset = None if agent is None else rules.agent_model(agent.id)
    return named if isinstance(named, str) else preset or rules.default_model or None


def _meta(request: ServiceRequest, rules: AssistRules) -> Meta:
    meta = request.payload.meta
    return read_meta(meta, sandbox=rules.sandbox, approval_policy=rules.approval_policy, cwd=rules.cwd)


def _time_limit(meta: Meta, rules: AssistRules) -> float:
    return min(meta.timeout or rules.max_timeout, rules.max_timeout)


def _model(
    request: ServiceRequest, meta: Meta, resolve: Callable[[str], ModelChoice], rules: AssistRules
) -> ModelChoice:
    agent = request.context.agent
    preset = None if agent is None else rules.agent_model(agent.id)
    if agent is not None and preset is None:
        raise InvalidRequest(
            "The agent that 'context.agent.id' names is not here. Leave 'context.agent' out for the default.",
            param="context.agent.id",
            code="unknown_agent",
            http_status=404,
        )
    try:
        return resolve(meta.model or preset or rules.default_model)
    except ModelNotFound:
        if meta.model is None:
            raise
        raise InvalidRequest(
            "The model that 'payload.meta.model' names does not exist here. GET /v1/models lists all.",
            param="payload.meta.model",
            code="model_not_found",
            http_status=404,
        ) from None


def _format(meta: Meta) -> OutputFormat | None:
    schema = meta.output_schema
    if schema is None:
        return None
    return OutputFormat("json_schema", {"type": "json_schema", "name": "output", "schema": schema}, schema)


def _unprocessable(message: str, param: str, code: str) -> InvalidMessage:
    return InvalidMessage(message, param=param, code=code)


def _unknown_members(data: Mapping[str, Any]) -> list[str]:
    """Members of a body that no model has: perhaps misspelt."""
    context = data.get("context")
    places: list[tuple[str, Any, Any]] = [
        ("", data, ServiceRequest),
        ("context.", context, SessionContext),
        ("payload.", data.get("payload"), AgentRequest),
    ]
    if isinstance(context, dict):
        places += [(f"context.{name}.", context.get(name), Identity) for name in ("user", "agent")]
    return [
        f"{prefix}{name}"
        for prefix, found, model in places
        if isinstance(found, dict)
        for name in found
        if name not in model.model_fields
    ]


def _fit(name: str) -> str:
    return _ODD.sub("?", name[:59]) or "?"
