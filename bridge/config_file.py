"""The configuration file: backends, routing and settings, as TOML.

Every fault names the file, the line and the key, and all of them are reported at once. So what concerns several keys
is checked on the file's own tables: pydantic would leave that out where one of the keys is wrong by itself.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from bridge.config import Settings, load_settings, rule_for, setting_of
from bridge.errors import ConfigError, nearest
from bridge.toml_text import describe_syntax_error, line_of, position_after
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
"""The keys that each type of backend has a use for."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-type", "accept"})


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class BackendConfig(_Table):
    """One `[backends.NAME]`."""

    type: BackendType
    preset: PresetName | None = None
    insecure_http: bool = False
    """Before base_url, so that it is known when that is checked."""
    base_url: str | None = None
    key_env: str | None = None
    key: str | None = Field(default=None, repr=False)
    credentials: str | None = None
    token_url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    timeout: float | None = Field(default=None, gt=0)
    discovery: bool = False
    models: list[str] = []

    @field_validator("token_url")
    @classmethod
    def _safe(cls, url: str | None) -> str | None:
        """A refresh token is worth more than a key: it never goes over plain http."""
        return None if url is None else check_url(url)

    @field_validator("base_url")
    @classmethod
    def _safe_unless_told(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None:
            return None
        if "insecure_http" not in _USES.get(info.data.get("type", ""), _HTTP):
            return check_url(url)
        # If it is itself a fault, it is not in `data`; one fault is enough.
        insecure = info.data.get("insecure_http", True)
        return check_url(url, insecure_http=insecure, remedy="use https, or set insecure_http = true")

    @field_validator("timeout", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        if value > 10**9:
            raise ValueError("that is longer than anybody waits")
        return float(value)

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, str]) -> dict[str, str]:
        faults = []
        for name, value in headers.items():
            if not _HEADER.fullmatch(name) or name.lower() in _OURS:
                faults.append(f"{name[:40]!r} cannot be set as a header")
            elif not value.isascii() or not value.isprintable():
                faults.append(f"the header {name} has visible ASCII characters only")
        if faults:
            raise ValueError("; ".join(faults))
        return headers

    @field_validator("key")
    @classmethod
    def _visible(cls, key: str | None) -> str | None:
        if key is not None and not is_header_safe(key):
            raise ValueError("a key has visible ASCII characters only")
        return key

    @field_validator("credentials")
    @classmethod
    def _path(cls, path: str | None) -> str | None:
        if path is not None and (not path or "\0" in path):
            raise ValueError("that is no path")
        return path

    @field_validator("key_env")
    @classmethod
    def _variable(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError("that is no variable's name")
        return name

    @field_validator("*", mode="before")
    @classmethod
    def _of_use(cls, value: Any, info: ValidationInfo) -> Any:
        """What would have no effect is a mistake. The type comes first, so that it is known."""
        kind, name = info.data.get("type"), info.field_name
        if (
            kind is not None
            and name not in _USES[kind] | {"type"}
            and value != cls.model_fields[str(name)].get_default(call_default_factory=True)
        ):
            raise ValueError(f"a backend of type {kind} has no use for it")
        return value


class RoutingConfig(_Table):
    """`[routing]`."""

    default: str | None = None
    patterns: dict[str, list[str]] = {}
    aliases: dict[str, str] = {}


class ToolModesConfig(_Table):
    """`[tool_modes]`: patterns of models' names and of keys' names."""

    models: dict[str, Literal["text", "native"]] = {}
    keys: dict[str, Literal["text", "native"]] = {}


class FileConfig(_Table):
    """The whole file."""

    backends: dict[str, BackendConfig] = {}
    routing: RoutingConfig = RoutingConfig()
    tool_modes: ToolModesConfig = ToolModesConfig()
    settings: dict[str, Any] = Field(default_factory=dict, repr=False)


def load_configuration(environment: Mapping[str, str] = os.environ, **flags: Any) -> tuple[Settings, FileConfig]:
    """All settings, and the configuration file that --config or PROXY_CONFIG names. Raises ConfigError."""
    path = flags.get("config") or environment.get("PROXY_CONFIG")
    config = read_config(Path(path)) if path else FileConfig()
    return load_settings(environment, config.settings, **flags), config


def read_config(path: Path) -> FileConfig:
    """Read a configuration file. Raises ConfigError with a line for each fault."""
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
        raise ConfigError(f"{path}:{position_after(before)}: not UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deep") from None
    except ValueError as error:  # what TOML forbids, and numbers that Python does
        raise ConfigError(f"{path}:{describe_syntax_error(text, error)}") from None
    return parse_config(data, text, str(path))


def parse_config(data: dict[str, Any], text: str, path: str) -> FileConfig:
    """The configuration in a file's `data`; `text` is what it was read from. Raises ConfigError."""
    config, faults = None, [*_backend_faults(data), *_routing_faults(data), *_setting_faults(data)]
    try:
        config = FileConfig.model_validate(data)
    except ValidationError as error:
        faults += [(fault["loc"], _say(fault)) for fault in error.errors()]
    if config is None or faults:
        told = [(line_of(text, keys), ".".join(keys), said) for keys, said in _by_keys(faults)]
        raise ConfigError("\n".join(f"{path}:{line}: {key}: {said}" for line, key, said in sorted(told)))
    return config


Fault = tuple[tuple[int | str, ...], str]
"""(the keys that lead to it, what is wrong)."""


def _backend_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    backends = _table(data.get("backends"))
    for name, value in backends.items():
        backend = _table(value)
        if not _NAME.fullmatch(name):
            yield ("backends",), f"{name[:40]!r}: a backend's name has letters, digits or any of _ . -"
        if name == "mock" or (name == "app-server" and backend.get("type") != "app-server"):
            yield ("backends", name), "this one is there already; choose another name"
        yield from ((("backends", name), said) for said in _contradictions(backend))
    if sum(_table(backend).get("type") == "app-server" for backend in backends.values()) > 1:
        yield ("backends",), "there is one app-server; use --workers for more children"


def _contradictions(backend: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the keys of a backend together."""
    kind = backend.get("type")
    given = [name for name in ("key", "key_env", "credentials") if name in backend]
    if len(given) > 1 and isinstance(kind, str) and _USES.get(kind, frozenset()) >= set(given):
        yield f"{' and '.join(given)}: give one of them"
    if kind == "anthropic" and "credentials" in backend and backend.get("insecure_http") is True:
        yield "insecure_http: a login is not sent over plain http; use https, or a key"
    if kind == "anthropic" and "token_url" in backend and "credentials" not in backend:
        yield "token_url: it goes with credentials"
    if kind in ("openai", "responses") and "base_url" not in backend and "preset" not in backend:
        yield f"base_url: a backend of type {kind} needs one"


def _routing_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    backends, routing = _table(data.get("backends")), _table(data.get("routing"))
    named = any(_table(backend).get("type") == "app-server" for backend in backends.values())
    known = {"mock", *(() if named else ("app-server",)), *backends}
    patterns = _table(routing.get("patterns"))
    for loc, name in [(("default",), routing.get("default")), *((("patterns", name), name) for name in patterns)]:
        if isinstance(name, str) and name not in known:
            yield ("routing", *loc), f"there is no backend {name[:40]!r}; there are {', '.join(sorted(known))}"
    if any("" in each for each in patterns.values() if isinstance(each, list)):
        yield ("routing", "patterns"), "an empty pattern would match everything; write * for that"


def _setting_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    settings = _table(data.get("settings"))
    fields = {name: field for name, field in Settings.model_fields.items() if name != "config"}
    for key, value in settings.items():
        if key not in fields:
            yield ("settings", key), f"there is no such setting{_suggest(key, fields)}"
        elif isinstance(value, str) and "\0" in value:
            yield ("settings", key), "there is a zero byte in it"
    try:
        Settings.model_validate({key: value for key, value in settings.items() if key in fields})
    except ValidationError as error:
        for fault in error.errors():
            name = setting_of(fault)
            field = fields.get(name)
            yield ("settings", name), (rule_for(fault, field) if field is not None else None) or _say(fault)


def _by_keys(faults: Iterable[Fault]) -> Iterator[tuple[list[str], str]]:
    return (([str(part) for part in loc], said) for loc, said in faults)


def _say(fault: Any) -> str:
    if fault["type"] != "extra_forbidden":
        return str(fault["msg"]).removeprefix("Value error, ")
    *tables, key = map(str, fault["loc"])
    models: dict[str, type[BaseModel]] = {
        "backends": BackendConfig,
        "routing": RoutingConfig,
        "tool_modes": ToolModesConfig,
    }
    known = models[tables[0]].model_fields if tables else FileConfig.model_fields
    return f"there is no such key{_suggest(key, known)}"


def _suggest(key: str, known: Iterable[str]) -> str:
    near = nearest(key, known, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
