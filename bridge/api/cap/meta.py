"""What `meta` of a request may ask for: names that are checked. Nothing in it can widen what the operator allows.

The same names under `meta.codex` win. Names that are not on the list are ignored; the caller is told which.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Literal, get_args

from bridge.api.body import Effort
from bridge.errors import Forbidden, InvalidRequest

EventName = Literal["tool_call", "metrics", "reasoning_raw", "reasoning_stream", "output_delta"]
EVENTS: frozenset[str] = frozenset(get_args(EventName))
"""Events that come only when `meta.events` asks for them."""

SUMMARIES = ("auto", "concise", "detailed", "none")
MAX_INSTRUCTIONS = 256 * 1024
MAX_TIMEOUT_MS = 7 * 24 * 3600 * 1000

_WHERE = "payload.meta"
_MODEL = re.compile(r"[!-~]{1,256}")
_TIMEZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(?:/[A-Za-z0-9_+-]{1,32}){0,2}")
_LOCALE = re.compile(r"[A-Za-z]{2,8}(?:[-_][A-Za-z0-9]{1,8}){0,4}")
_NO_OPINION = {"service_tier": ("auto", "default"), "personality": ("none", "default")}
"""Names without a place in a turn; these values ask for nothing."""

NARROWER_SANDBOX: Mapping[str, tuple[str, ...]] = {
    "read-only": (),
    "workspace-write": ("read-only",),
    "danger-full-access": ("workspace-write", "read-only"),
}
NARROWER_APPROVAL: Mapping[str, tuple[str, ...]] = {
    # `never` never leaves the sandbox, the two of the middle may when somebody agrees. `untrusted` runs less by itself
    # than any, but can ask to leave: it is neither wider nor narrower than `never`.
    "never": (),
    "on-request": ("never",),
    "on-failure": ("never",),
    "untrusted": (),
}
"""What is strictly narrower than what the operator has set."""


@dataclass(frozen=True, slots=True)
class Meta:
    """The wishes of a request, checked. `narrowed` holds what is strictly narrower than the operator's settings."""

    model: str | None = None
    effort: str | None = None
    summary: str | None = None
    instructions: str | None = None
    output_schema: Mapping[str, Any] | None = None
    timezone: str | None = None
    locale: str | None = None
    timeout: float | None = None
    """Seconds."""
    events: frozenset[str] = frozenset()
    narrowed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    ignored: tuple[str, ...] = ()
    """The names that were not looked at, or ask for what there is not."""

    @property
    def context_line(self) -> str | None:
        """What the model is told of where the user is."""
        known = [f"time zone is {self.timezone}"] if self.timezone else []
        known += [f"locale is {self.locale}"] if self.locale else []
        return f"The user's {' and '.join(known)}." if known else None


def read_meta(
    meta: Mapping[str, Any], *, sandbox: str = "read-only", approval_policy: str = "never", cwd: str | None = None
) -> Meta:
    """`meta`, checked against the operator's settings. Raises InvalidRequest; Forbidden for what would widen them."""
    own = meta.get("codex")
    if own is not None and not isinstance(own, dict):
        raise _invalid("codex", "expected an object")
    places = {name: name for name in meta if name != "codex"} | {name: f"codex.{name}" for name in own or ()}
    values = {name: value for name, value in {**meta, **(own or {})}.items() if name != "codex" and value is not None}
    reader = _Reader(values, places)
    narrowed = {
        "sandbox": reader.narrower("sandbox", sandbox, NARROWER_SANDBOX),
        "approval_policy": reader.narrower("approval_policy", approval_policy, NARROWER_APPROVAL),
        "cwd": reader.inside("cwd", cwd),
    }
    model = reader.text("model", 256)
    if model is not None and not _MODEL.fullmatch(model):
        raise reader.wrong("model", "this is no name of a model")
    timeout_ms = reader.number("timeout_ms")
    found = Meta(
        model=model,
        effort=reader.one_of("effort", get_args(Effort)),
        summary=reader.one_of("summary", SUMMARIES),
        instructions=reader.text("instructions", MAX_INSTRUCTIONS) or None,
        output_schema=reader.object("output_schema"),
        timezone=reader.matching("timezone", _TIMEZONE),
        locale=reader.matching("locale", _LOCALE),
        timeout=None if timeout_ms is None else timeout_ms / 1000,
        events=reader.events(),
        narrowed=MappingProxyType({name: value for name, value in narrowed.items() if value is not None}),
    )
    return replace(found, ignored=tuple(reader.ignored()))


def _invalid(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{_WHERE}.{name}': {why}.", param=f"{_WHERE}.{name}", http_status=422)


class _Reader:
    """Takes names out of `meta`, and knows which were not taken."""

    def __init__(self, values: Mapping[str, Any], places: Mapping[str, str]) -> None:
        self._values = values
        self._places = places
        self._taken: set[str] = set()
        self._unknown: list[str] = []

    def take(self, name: str) -> Any:
        self._taken.add(name)
        return self._values.get(name)

    def wrong(self, name: str, why: str) -> InvalidRequest:
        return _invalid(self._places.get(name, name), why)

    def text(self, name: str, longest: int) -> str | None:
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "expected a string")
        if value is not None and len(value) > longest:
            raise self.wrong(name, f"at most {longest} characters")
        return value

    def matching(self, name: str, form: re.Pattern[str]) -> str | None:
        value = self.text(name, 128)
        if value is not None and not form.fullmatch(value):
            raise self.wrong(name, f"this is no {name}")
        return value

    def one_of(self, name: str, known: tuple[str, ...]) -> str | None:
        value = self.text(name, 128)
        if value is not None and value not in known:
            raise self.wrong(name, f"expected one of {', '.join(known)}")
        return value

    def object(self, name: str) -> Mapping[str, Any] | None:
        value = self.take(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, "expected an object")
        return value

    def number(self, name: str) -> int | None:
        value = self.take(name)
        if value is not None and (type(value) is not int or not 1 <= value <= MAX_TIMEOUT_MS):
            raise self.wrong(name, f"expected whole milliseconds from 1 to {MAX_TIMEOUT_MS}")
        return value

    def events(self) -> frozenset[str]:
        value = self.take("events")
        if value is None:
            return frozenset()
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.wrong("events", "expected a list of names")
        self._unknown += [f"{self._places['events']}:{name}" for name in value if name not in EVENTS]
        return frozenset(value) & EVENTS

    def narrower(self, name: str, allowed: str, order: Mapping[str, tuple[str, ...]]) -> str | None:
        """What is asked for, when it is narrower than what is allowed; None when it is the same."""
        value = self.one_of(name, tuple(order))
        if value is None or value == allowed:
            return None
        if value not in order[allowed]:
            raise self.too_wide(name)
        return value

    def inside(self, name: str, allowed: str | None) -> str | None:
        """A directory below the allowed one. Links in it are for whoever uses it to look at."""
        value = self.text(name, 4096)
        if value is None:
            return None
        if allowed is None:
            raise self.too_wide(name)
        whole = PurePosixPath(allowed, value)
        if "\0" in value or ".." in whole.parts or not whole.is_relative_to(allowed):
            raise self.too_wide(name)
        return None if whole == PurePosixPath(allowed) else str(whole)

    def too_wide(self, name: str) -> Forbidden:
        place = f"{_WHERE}.{self._places.get(name, name)}"
        return Forbidden(f"'{place}' asks for something else than this service allows, or for more.", param=place)

    def ignored(self) -> list[str]:
        others = [
            f"meta.{self._places[name]}"
            for name, value in self._values.items()
            if name not in self._taken and value not in _NO_OPINION.get(name, ())
        ]
        return [*others, *(f"meta.{name}" for name in self._unknown)]
