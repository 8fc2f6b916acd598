"""The configuration file: backends, routing and settings as TOML.

All faults are reported at once, each with file, line and key. Rules about several keys are therefore checked on the
file's own tables: pydantic skips such checks when one of the keys is invalid by itself.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from bridge.errors import ConfigError, nearest
from bridge.settings import SETTINGS, load_settings, reason_of, rule_for
from bridge.settings.model import Settings
from bridge.urls import check_url, is_header_safe

MAX_FILE = 1024 * 1024
BackendType = Literal["app-server", "codex", "anthropic", "openai", "responses", "mock"]

PresetName = Literal["openai", "gemini", "groq", "openrouter", "ollama", "lmstudio", "vllm"]

_HTTP = ("insecure_http", "base_url", "key_env", "key", "headers", "timeout", "discovery", "models")
_USES: Mapping[str, frozenset[str]] = {
    "app-server": frozenset({"models"}),
    "mock": frozenset({"models"}),
    "codex": frozenset({"base_url", "token_url", "timeout", "models"}),
    "anthropic": frozenset({*_HTTP, "credentials", "token_url"}),
    "openai": frozenset({*_HTTP, "preset"}),
    "responses": frozenset(_HTTP),
}
"""The keys that each type of backend accepts."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-type", "accept"})


def _rule(holds: Callable[[str], object], reason: str) -> AfterValidator:
    def check(text: str) -> str:
        if not holds(text):
            raise ValueError(reason)
        return text

    return AfterValidator(check)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class BackendConfig(_Table):
    """One `[backends.NAME]`."""

    type: BackendType
    preset: PresetName | None = None
    insecure_http: bool = False
    """Declared before base_url, whose check needs it."""
    base_url: str | None = None
    key_env: Annotated[str, _rule(_VARIABLE.fullmatch, "not the name of an environment variable")] | None = None
    key: Annotated[str, _rule(is_header_safe, "must contain only visible ASCII characters")] | None = Field(
        default=None, repr=False
    )
    credentials: Annotated[str, _rule(lambda path: path and "\0" not in path, "not a path")] | None = None
    token_url: Annotated[str, AfterValidator(check_url)] | None = None
    """Never plain http: a refresh token is worth more than a key."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    timeout: float | None = Field(default=None, gt=0)
    discovery: bool = False
    models: list[str] = []

    @field_validator("base_url")
    @classmethod
    def _safe_unless_allowed(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None:
            return None
        if "insecure_http" not in _USES.get(info.data.get("type", ""), _HTTP):
            return check_url(url)
        # When insecure_http is invalid itself, it is missing from `data`; one fault is enough.
        insecure = info.data.get("insecure_http", True)
        return check_url(url, insecure_http=insecure, remedy="use https, or set insecure_http = true")

    @field_validator("timeout", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        if value > 10**9:
            raise ValueError("must not exceed 1,000,000,000 seconds")
        return float(value)

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, str]) -> dict[str, str]:
        faults = []
        for name, value in headers.items():
            if not _HEADER.fullmatch(name) or name.lower() in _OURS:
                faults.append(f"{name[:40]!r} cannot be set as a header")
            elif not value.isascii() or not value.isprintable():
                faults.append(f"the value of {name} must contain only visible ASCII characters")
        if faults:
            raise ValueError("; ".join(faults))
        return headers

    @field_validator("*", mode="before")
    @classmethod
    def _is_used(cls, value: Any, info: ValidationInfo) -> Any:
        """A key without effect is a mistake. The type is declared first, so that it is known here."""
        kind, name = info.data.get("type"), info.field_name
        if (
            kind is not None
            and name not in _USES[kind] | {"type"}
            and value != cls.model_fields[str(name)].get_default(call_default_factory=True)
        ):
            raise ValueError(f"a backend of type {kind} does not use it")
        return value


class RoutingConfig(_Table):
    """`[routing]`."""

    default: str | None = None
    patterns: dict[str, list[str]] = {}
    aliases: dict[str, str] = {}
    fallback: dict[str, Annotated[list[str], Field(max_length=8)]] = {}


class ToolModesConfig(_Table):
    """`[tool_modes]`: tool modes by patterns of model names and key names."""

    models: dict[str, Literal["text", "native"]] = {}
    keys: dict[str, Literal["text", "native"]] = {}


_Amount = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class PriceConfig(_Table):
    """One entry of `[prices.models]`: the price of a million tokens."""

    input: _Amount
    output: _Amount
    cached: _Amount | None = None
    """By default as `input`."""
    reasoning: _Amount | None = None
    """By default as `output`."""

    @field_validator("*", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


class PricesConfig(_Table):
    """`[prices]`: what models cost, by patterns of their names."""

    currency: Annotated[str, _rule(re.compile(r"[A-Z]{3}").fullmatch, "must be three capital letters, such as USD")] = (
        "USD"
    )
    models: dict[str, PriceConfig] = {}


class FileConfig(_Table):
    """The whole file."""

    backends: dict[str, BackendConfig] = {}
    routing: RoutingConfig = RoutingConfig()
    tool_modes: ToolModesConfig = ToolModesConfig()
    prices: PricesConfig = PricesConfig()
    settings: dict[str, Any] = Field(default_factory=dict, repr=False)


def load_configuration(environment: Mapping[str, str] = os.environ, **flags: Any) -> tuple[Settings, FileConfig]:
    """All settings, and the configuration file that --config or PROXY_CONFIG names. Raises ConfigError."""
    path = flags.get("config") or environment.get("PROXY_CONFIG")
    config = read_config(Path(path)) if path else FileConfig()
    return load_settings(environment, config.settings, **flags), config


def read_config(path: Path) -> FileConfig:
    """Read a configuration file. Raises ConfigError with a line for each fault."""
    # Loaded late: most installations have no such file.
    import tomllib

    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(content) > MAX_FILE:
        raise ConfigError(f"{path}: larger than {MAX_FILE:,} bytes")
    try:
        text = content.decode("utf-8")
        data = tomllib.loads(text)
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        raise ConfigError(f"{path}:{_position_after(before)}: not UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    except ValueError as error:  # invalid TOML, and numbers too long for Python
        raise ConfigError(f"{path}:{_describe_syntax_error(text, error)}") from None
    return parse_config(data, text, str(path))


def parse_config(data: dict[str, Any], text: str, path: str) -> FileConfig:
    """Validate the tables of a file; `text` is its source, to find lines in. Raises ConfigError."""
    config, faults = None, [*_backend_faults(data), *_routing_faults(data), *_setting_faults(data)]
    try:
        config = FileConfig.model_validate(data)
    except ValidationError as error:
        faults += [(fault["loc"], _explain(fault)) for fault in error.errors()]
    if config is None or faults:
        located = [([str(part) for part in loc], reason) for loc, reason in faults]
        lines = sorted((line_of(text, keys), ".".join(keys), reason) for keys, reason in located)
        raise ConfigError("\n".join(f"{path}:{line}: {key}: {reason}" for line, key, reason in lines))
    return config


Fault = tuple[tuple[int | str, ...], str]
"""(path of keys, what is wrong)."""


def _backend_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    backends = _table(data.get("backends"))
    for name, value in backends.items():
        backend = _table(value)
        if not _NAME.fullmatch(name):
            yield ("backends",), f"{name[:40]!r}: a backend's name consists of letters, digits and _ . -"
        if name == "mock" or (name == "app-server" and backend.get("type") != "app-server"):
            yield ("backends", name), "this name is reserved; choose another one"
        yield from ((("backends", name), reason) for reason in _contradictions(backend))
    if sum(_table(backend).get("type") == "app-server" for backend in backends.values()) > 1:
        yield ("backends",), "only one backend can have the type app-server; use --workers for more processes"


def _contradictions(backend: Mapping[str, Any]) -> Iterator[str]:
    """Keys of a backend that do not go together."""
    kind = backend.get("type")
    given = [name for name in ("key", "key_env", "credentials") if name in backend]
    if len(given) > 1 and isinstance(kind, str) and _USES.get(kind, frozenset()) >= set(given):
        yield f"{' and '.join(given)}: use only one of them"
    if kind == "anthropic" and "credentials" in backend and backend.get("insecure_http") is True:
        yield "insecure_http: a login is not sent over plain http; use https, or a key"
    if kind == "anthropic" and "token_url" in backend and "credentials" not in backend:
        yield "token_url: requires credentials"
    if kind in ("openai", "responses") and "base_url" not in backend and "preset" not in backend:
        yield f"base_url: required for a backend of type {kind}"


def _routing_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    backends, routing = _table(data.get("backends")), _table(data.get("routing"))
    named = any(_table(backend).get("type") == "app-server" for backend in backends.values())
    known = {"mock", *(() if named else ("app-server",)), *backends}
    patterns = _table(routing.get("patterns"))
    for loc, name in [(("default",), routing.get("default")), *((("patterns", name), name) for name in patterns)]:
        if isinstance(name, str) and name not in known:
            yield ("routing", *loc), f"unknown backend {name[:40]!r}; choose one of {', '.join(sorted(known))}"
    if any("" in each for each in patterns.values() if isinstance(each, list)):
        yield ("routing", "patterns"), "an empty pattern matches everything; write * instead"
    for pattern, names in _table(routing.get("fallback")).items():
        if reason := _fault_of_chain(pattern, names):
            yield ("routing", "fallback", pattern), reason


def _fault_of_chain(pattern: str, names: Any) -> str | None:
    if not pattern:
        return "an empty pattern matches everything; write * instead"
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None  # the model reports it
    if not names or "" in names:
        return "name at least one model, and no empty name"
    lowered = [name.lower() for name in names]
    if pattern.lower() in lowered:
        return "a cycle: the model falls back to itself; remove it from its own list"
    return "names a model twice" if len(set(lowered)) < len(lowered) else None


def _setting_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    settings = _table(data.get("settings"))
    fields = [name for name in SETTINGS if name != "config"]
    for key, value in settings.items():
        if key not in fields:
            yield ("settings", key), f"unknown setting{_suggest(key, fields)}"
        elif isinstance(value, str) and "\0" in value:
            yield ("settings", key), "must not contain a zero byte"
    try:
        Settings.model_validate({key: value for key, value in settings.items() if key in fields})
    except ValidationError as error:
        for fault in error.errors():
            yield ("settings", fault["loc"][0]), rule_for(fault) or reason_of(fault)


def _explain(fault: ErrorDetails) -> str:
    if fault["type"] != "extra_forbidden":
        return reason_of(fault)
    *tables, key = map(str, fault["loc"])
    models: dict[str, type[BaseModel]] = {
        "backends": BackendConfig,
        "routing": RoutingConfig,
        "tool_modes": ToolModesConfig,
        "prices": PricesConfig,
    }
    known = models[tables[0]].model_fields if tables else FileConfig.model_fields
    return f"unknown key{_suggest(key, known)}"


def _suggest(key: str, known: Iterable[str]) -> str:
    near = nearest(key, known, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# Positions: tomllib reports them for syntax errors only, and within a sentence.

_AT = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL)
_DIGITS = re.compile(r"[0-9_]+")
_PART = r"(?:[A-Za-z0-9_-]+|\"(?:[^\"\\]|\\.)*\"|'[^']*')"
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADING = re.compile(rf"\s*\[\[?\s*(?P<name>{_DOTTED})\s*\]")
_KEY = re.compile(rf"\s*(?P<key>{_DOTTED})\s*=")
_LONG_TEXT = re.compile(r"\"{3}|'{3}")


def _describe_syntax_error(text: str, error: ValueError) -> str:
    """`LINE:COLUMN: what is wrong`, without quoting the file, which may contain secrets."""
    found = _AT.fullmatch(str(error))
    if found is None:
        return _describe_long_number(text)
    what = found["what"][:1].lower() + found["what"][1:]
    if found["line"] is None:
        return f"{_position_after(text)}: unexpected end of file ({what})"
    return f"{found['line']}:{found['column']}: {what}"


def _position_after(text: str) -> str:
    """LINE:COLUMN of what follows this start of a file."""
    *before, last = text.split("\n")
    return f"{len(before) + 1}:{len(last) + 1}"


def line_of(text: str, keys: Sequence[str]) -> int:
    """The line of a key, or of the nearest table or key above it."""
    table: list[str] = []
    best, line, in_text = 0, 1, False
    for number, content in enumerate(text.split("\n"), 1):
        within, in_text = in_text, in_text ^ (len(_LONG_TEXT.findall(content)) % 2 == 1)
        if within:
            continue
        if heading := _HEADING.match(content):
            here = table = _split(heading["name"])
        elif key := _KEY.match(content):
            here = [*table, *_split(key["key"])]
        else:
            continue
        shared = next(
            (index for index, pair in enumerate(zip(here, keys, strict=False)) if pair[0] != pair[1]),
            min(len(here), len(keys)),
        )
        # A table inside the wanted one is better than nothing, but worse than the wanted table itself.
        score = 2 * shared + (shared == len(here)) if shared else 0
        if score > best:
            best, line = score, number
    return line


def _split(dotted: str) -> list[str]:
    """The parts of a dotted key as TOML reads them."""
    import tomllib

    try:
        data: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return []
    parts = []
    while isinstance(data, dict):
        ((part, data),) = data.items()
        parts.append(part)
    return parts


def _describe_long_number(text: str) -> str:
    """Python refuses numbers with more digits than this, without a position."""
    limit = sys.get_int_max_str_digits()
    start = next((run.start() for run in _DIGITS.finditer(text) if len(run[0]) > limit), 0)
    return f"{_position_after(text[:start])}: a number must not have more than {limit:,} digits"
