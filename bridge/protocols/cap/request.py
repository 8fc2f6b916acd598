"""A ServiceRequest as a Turn. Error messages name the member at fault, never its value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bridge.core.images import decode_base64
from bridge.core.items import Image, Message, OutputFormat, Part, Text
from bridge.core.models import ModelChoice
from bridge.core.turn import Turn
from bridge.errors import Forbidden, InvalidRequest, ModelNotFound
from bridge.protocols.cap import AssistRules
from bridge.protocols.cap.decoder import effective_meta
from bridge.protocols.cap.failures import InvalidMessage, invalid_message
from bridge.protocols.cap.models import AgentRequest, Identity, ServiceRequest, SessionContext
from bridge.protocols.dropped import header_names
from bridge.protocols.items import read_items
from bridge.protocols.reading import Effort

MAX_FILES = 32
MAX_URL = 8192
MAX_DATA_URL = 20 * 1024 * 1024

_FORMAT = {"type": "json_schema", "name": "output"}
_ID = re.compile(r"[!-~]{1,256}")
_IMAGE_DATA = re.compile(r"data:image/[a-z0-9][a-z0-9.+-]{0,63};base64,", re.IGNORECASE)
_IMAGE_NAME = re.compile(r"\.(?:png|jpe?g|gif|webp|bmp|tiff?|heic|heif|avif)", re.IGNORECASE)
_NOT_IN_URL = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class Assist:
    """A parsed request. The server adds to `turn` what only it knows: the session, and whether it is streamed."""

    turn: Turn
    events: frozenset[str]
    """The optional events that the client asks for."""
    ignored: tuple[str, ...]
    """Names of members without effect, safe for a header."""


def parse_service_request(data: Any) -> ServiceRequest:
    """A body as a ServiceRequest; `ServiceRequest.dump` is the reverse. Raises InvalidMessage."""
    try:
        return ServiceRequest.model_validate(data)
    except ValidationError as error:
        raise invalid_message("ServiceRequest", error) from None


def parse_assist(
    request: ServiceRequest,
    resolve: Callable[[str], ModelChoice],
    rules: AssistRules,
    context: Sequence[dict[str, Any]] = (),
    *,
    data: Mapping[str, Any] | None = None,
) -> Assist:
    """The Turn of a request; `context` are the items of the conversation that it continues.

    `data` is the body as it was sent, to report unknown members. Raises BridgeError.
    """
    payload = request.payload
    conversation_of(request)  # refuses an invalid one
    meta = parse_meta(payload.meta, rules)
    images = parse_files(payload.files)
    blank = not payload.query.strip()
    if blank and not images:
        raise InvalidMessage("'payload.query' is empty: ask something.", param="payload.query", code="empty_query")
    content: tuple[Part, ...] = images if blank else (Text(payload.query), *images)
    model = _model(request, meta, resolve, rules)
    schema = meta.output_schema
    instructions = "\n\n".join(text for text in (meta.instructions, meta.context_line) if text)
    turn = Turn(
        model=model.effective,
        backend=model.backend,
        provider=model.provider,
        requested_model=model.requested,
        items=(*read_items(context, "previous"), Message("user", content)),
        instructions=instructions or None,
        effort=meta.effort or model.effort,
        summary=meta.summary,
        output_format=None if schema is None else OutputFormat("json_schema", {**_FORMAT, "schema": schema}, schema),
        include_usage=True,
        # A backend that cannot enforce one of these refuses the turn.
        narrowed=meta.narrowed,
    )
    ignored = (*_unknown_members(data or {}), *meta.ignored)
    return Assist(turn, EVENTS.intersection(meta.events), tuple(header_names(ignored)))


# What the server needs to know before the request is parsed as a whole


def check_caller(request: ServiceRequest, caller: str | None) -> None:
    """Refuse a request in another user's name.

    `caller` is the id of the authenticated user: None if users are not checked, "" if the key belongs to no user.
    """
    if caller is not None and (not caller or request.context.user.id != caller):
        raise Forbidden("'context.user.id' does not match the user of this key.", param="context.user.id")


def owner_of(context: SessionContext) -> str:
    """The owner of the conversations of a user's session, as a digest."""
    return blake2b(orjson.dumps([context.user.id, context.session_id]), digest_size=16).hexdigest()


def conversation_of(request: ServiceRequest) -> str | None:
    """The conversation's id, checked because it is sent in a header. An empty one counts as none."""
    payload, param = request.payload, "payload.conversation_id"
    if payload.session_id is not None and payload.session_id != request.context.session_id:
        raise InvalidMessage(
            "'payload.session_id' and 'context.session_id' differ: a request belongs to one session.",
            param="payload.session_id",
            code="session_mismatch",
        )
    if payload.conversation_id and not _ID.fullmatch(payload.conversation_id):
        raise InvalidMessage(
            f"Invalid {param!r}: use 1 to 256 visible ASCII characters.", param=param, code="invalid_conversation_id"
        )
    return payload.conversation_id or None


def wanted_model(request: ServiceRequest, rules: AssistRules) -> str | None:
    """The name of the model that the request asks for, before it is checked; None if it names none."""
    named, agent = effective_meta(request.payload.meta).get("model"), request.context.agent
    preset = None if agent is None else rules.agent_model(agent.id)
    return named if isinstance(named, str) and named else preset or rules.default_model or None


def time_limit(request: ServiceRequest, rules: AssistRules) -> float:
    """Seconds that the turn of a request may take. Raises BridgeError, as `parse_assist` does."""
    wanted = parse_meta(request.payload.meta, rules).timeout_ms
    return rules.max_timeout if wanted is None else min(wanted / 1000, rules.max_timeout)


def _model(
    request: ServiceRequest, meta: Meta, resolve: Callable[[str], ModelChoice], rules: AssistRules
) -> ModelChoice:
    agent = request.context.agent
    preset = None if agent is None else rules.agent_model(agent.id)
    if agent is not None and preset is None:
        raise InvalidRequest(
            "Unknown agent in 'context.agent.id'. Leave 'context.agent' out for the default model.",
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
            "The model in 'payload.meta.model' does not exist. GET /v1/models lists all models.",
            param="payload.meta.model",
            code="model_not_found",
            http_status=404,
        ) from None


def _unknown_members(data: Mapping[str, Any]) -> list[str]:
    """Members of a body that no model has: perhaps misspelt."""
    context = data.get("context")
    levels: list[tuple[str, Any, Any]] = [
        ("", data, ServiceRequest),
        ("context.", context, SessionContext),
        ("payload.", data.get("payload"), AgentRequest),
    ]
    if isinstance(context, dict):
        levels += [(f"context.{name}.", context.get(name), Identity) for name in ("user", "agent")]
    return [
        f"{prefix}{name}"
        for prefix, found, model in levels
        if isinstance(found, dict)
        for name in found
        if name not in model.model_fields
    ]


# `files`: images only. The bridge fetches nothing (a URL could lead into its own network) and reads no local file.


def parse_files(files: Sequence[str]) -> tuple[Image, ...]:
    """Images, in order: data URLs as they are, http(s) URLs for the provider to fetch. Raises InvalidRequest."""
    if len(files) > MAX_FILES:
        raise InvalidMessage(
            f"A request may have at most {MAX_FILES} files.", param="payload.files", code="too_many_files"
        )
    return tuple(Image(_image_url(file, index)) for index, file in enumerate(files))


def _image_url(file: str, index: int) -> str:
    if file[:5].lower() == "data:":
        head = _IMAGE_DATA.match(file)
        if head is None:
            raise _unsupported(index, "a data URL must hold an image in base64 (data:image/png;base64,…)")
        if len(file) > MAX_DATA_URL:
            raise _unsupported(index, f"it is longer than {MAX_DATA_URL} characters")
        if not decode_base64(file[head.end() :]):
            raise _unsupported(index, "its base64 is empty or invalid")
        return file
    if len(file) > MAX_URL:
        raise _unsupported(index, f"it is longer than {MAX_URL} characters")
    scheme, _, rest = file.partition("://")
    if scheme.lower() not in ("http", "https") or not rest:
        raise _unsupported(index, "only images are taken, as a data URL or as an http(s) address")
    try:
        parts = urlsplit(file)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or _NOT_IN_URL.search(file) or "@" in parts.netloc:
        raise _unsupported(index, "it is not a plain URL")
    if not _IMAGE_NAME.search(parts.path[-6:]):
        raise _unsupported(index, "the path must end in an image extension (.png, .jpg, .webp, …)")
    return file


def _unsupported(index: int, why: str) -> InvalidMessage:
    message = f"The file at index {index} cannot be used: {why}."
    return InvalidMessage(message, param=f"payload.files[{index}]", code="unsupported_file")


# `meta`: what a request may ask for. Nothing in it can widen what the operator allows. The same names under
# `meta.codex` take precedence. Unknown names are ignored and reported to the client.

EventName = Literal["tool_call", "metrics", "reasoning_raw", "reasoning_stream", "output_delta"]
EVENTS: frozenset[str] = frozenset(get_args(EventName))
"""Events that are sent only if `meta.events` asks for them."""

MAX_INSTRUCTIONS = 256 * 1024
MAX_TIMEOUT_MS = 7 * 24 * 3600 * 1000

_WITHOUT_EFFECT = {"service_tier": ("auto", "default"), "personality": ("none", "default")}
"""Names that a turn has no use for. These values ask for nothing, so they are not reported as ignored."""

NARROWER_SANDBOX: Mapping[str, tuple[str, ...]] = {
    "read-only": (),
    "workspace-write": ("read-only",),
    "danger-full-access": ("workspace-write", "read-only"),
}
NARROWER_APPROVAL: Mapping[str, tuple[str, ...]] = {
    # `never` never leaves the sandbox; `on-request` and `on-failure` may if someone agrees. `untrusted` runs less by
    # itself than any other, but can ask to leave: it is neither wider nor narrower than `never`.
    "never": (),
    "on-request": ("never",),
    "on-failure": ("never",),
    "untrusted": (),
}
"""The values that are strictly narrower than the operator's."""

_EXPECTED = {
    "model": "expected the name of a model",
    "timezone": "expected a time zone, for example Europe/Zurich",
    "locale": "expected a locale, for example de-CH",
    "timeout_ms": f"expected whole milliseconds from 1 to {MAX_TIMEOUT_MS}",
}
"""Clearer than pydantic's messages, which show a regular expression."""

_Zone = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_+-]{0,31}(?:/[A-Za-z0-9_+-]{1,32}){0,2}$")]
_Locale = Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(?:[-_][A-Za-z0-9]{1,8}){0,4}$")]


class Wishes(BaseModel):
    """The members of `meta` that are read."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    model: Annotated[str, Field(pattern=r"^[!-~]{1,256}$")] | None = None
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    instructions: Annotated[str, Field(max_length=MAX_INSTRUCTIONS)] | None = None
    output_schema: dict[str, Any] | None = None
    timezone: _Zone | None = None
    locale: _Locale | None = None
    timeout_ms: Annotated[int, Field(ge=1, le=MAX_TIMEOUT_MS)] | None = None
    events: list[str] = Field(default_factory=list)
    sandbox: Literal["read-only", "workspace-write", "danger-full-access"] | None = None
    approval_policy: Literal["never", "on-request", "on-failure", "untrusted"] | None = None
    cwd: Annotated[str, Field(max_length=4096)] | None = None


class Meta(Wishes):
    """`meta`, checked against the operator's settings."""

    narrowed: Mapping[str, str] = Field(default_factory=dict)
    """Of sandbox, approval_policy and cwd, those that are strictly narrower than the operator's."""
    ignored: tuple[str, ...] = ()
    """The names that have no effect."""

    @property
    def context_line(self) -> str | None:
        """The line of the prompt about the user's location."""
        known = [f"time zone is {self.timezone}"] if self.timezone else []
        known += [f"locale is {self.locale}"] if self.locale else []
        return f"The user's {' and '.join(known)}." if known else None


def parse_meta(meta: Mapping[str, Any], rules: AssistRules) -> Meta:
    """`meta`, checked. Raises InvalidRequest, or Forbidden for values wider than the operator's settings."""
    own = meta.get("codex")
    if own is not None and not isinstance(own, dict):
        raise _invalid("codex", "expected an object")
    paths = {name: name for name in meta} | {name: f"codex.{name}" for name in own or ()}
    values = {name: value for name, value in effective_meta(meta).items() if value is not None}
    try:
        wishes = Wishes.model_validate(values)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        name = str(fault["loc"][0])
        raise _invalid(paths[name], _EXPECTED.get(name, fault["msg"])) from None
    narrowed: dict[str, str] = {}
    for name, order in (("sandbox", NARROWER_SANDBOX), ("approval_policy", NARROWER_APPROVAL)):
        wish, allowed = getattr(wishes, name), getattr(rules, name)
        if wish in order[allowed]:
            narrowed[name] = wish
        elif wish not in (None, allowed):
            raise _too_wide(paths[name])
    if wishes.cwd is not None:
        # Symbolic links are checked by the backend that uses it.
        cwd, allowed = PurePosixPath(rules.cwd or "", wishes.cwd), rules.cwd
        if allowed is None or "\0" in wishes.cwd or ".." in cwd.parts or not cwd.is_relative_to(allowed):
            raise _too_wide(paths["cwd"])
        if cwd != PurePosixPath(allowed):
            narrowed["cwd"] = str(cwd)
    ignored = [
        f"meta.{paths[name]}"
        for name, value in values.items()
        if name not in Wishes.model_fields and value not in _WITHOUT_EFFECT.get(name, ())
    ]
    ignored += [f"meta.{paths['events']}:{name}" for name in wishes.events if name not in EVENTS]
    return Meta(**dict(wishes), narrowed=narrowed, ignored=tuple(ignored))


def _invalid(path: str, why: str) -> InvalidMessage:
    param = f"payload.meta.{path}"
    return InvalidMessage(f"Invalid {param!r}: {why}.", param=param)


def _too_wide(path: str) -> Forbidden:
    param = f"payload.meta.{path}"
    return Forbidden(f"{param!r} is not within what the operator of this service allows.", param=param)
