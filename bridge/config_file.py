"""The configuration file: backends, routing and settings, as TOML. Every fault names the file, the line, the key."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from bridge.config import Settings, load_settings, rule_for, setting_of
from bridge.errors import ConfigError
from bridge.urls import check_url, is_header_safe

MAX_FILE = 1024 * 1024
BackendType = Literal["app-server", "codex", "anthropic", "openai", "responses", "mock"]

PresetName = Literal["openai", "gemini", "groq", "openrouter", "ollama", "lmstudio", "vllm"]

_USES: Mapping[str, frozenset[str]] = {
    "app-server": frozenset({"models"}),
    "mock": frozenset({"models"}),
    "codex": frozenset({"base_url", "token_url", "timeout", "models"}),
    "anthropic": frozenset(
        {"base_url", "key_env", "key", "credentials", "token_url", "headers", "timeout", "discovery", "models"}
    ),
    "openai": frozenset({"preset", "base_url", "key_env", "key", "headers", "timeout", "discovery", "models"}),
    "responses": frozenset({"base_url", "key_env", "key", "headers", "timeout", "discovery", "models"}),
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
    base_url: str | None = None
    key_env: str | None = None
    key: str | None = Field(default=None, repr=False)
    credentials: str | None = None
    token_url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    timeout: float | None = Field(default=None, gt=0)
    discovery: bool = False
    models: list[str] = []

    @field_validator("base_url", "token_url")
    @classmethod
    def _safe(cls, url: str | None) -> str | None:
        return None if url is None else check_url(url)

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
        for name, value in headers.items():
            if not _HEADER.fullmatch(name) or name.lower() in _OURS:
                raise ValueError(f"{name[:40]!r} cannot be set as a header")
            if not value.isascii() or not value.isprintable():
                raise ValueError(f"the header {name} has visible ASCII characters only")
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

    @field_validator("*")
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

    @model_validator(mode="after")
    def _one_key(self) -> BackendConfig:
        given = [name for name in ("key", "key_env", "credentials") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: give one of them")
        if self.token_url is not None and self.type == "anthropic" and self.credentials is None:
            raise ValueError("token_url: it goes with credentials")
        if self.type in ("openai", "responses") and self.base_url is None and self.preset is None:
            raise ValueError(f"base_url: a backend of type {self.type} needs one")
        return self


class RoutingConfig(_Table):
    """`[routing]`."""

    default: str | None = None
    patterns: dict[str, list[str]] = {}
    aliases: dict[str, str] = {}

    @field_validator("patterns")
    @classmethod
    def _not_empty(cls, patterns: dict[str, list[str]]) -> dict[str, list[str]]:
        if any(not pattern for each in patterns.values() for pattern in each):
            raise ValueError("an empty pattern would match everything; write * for that")
        return patterns


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

    @field_validator("backends")
    @classmethod
    def _names(cls, backends: dict[str, BackendConfig]) -> dict[str, BackendConfig]:
        for name in backends:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name[:40]!r}: a backend's name has letters, digits or any of _ . -")
            if name == "mock" or (name == "app-server" and backends[name].type != "app-server"):
                raise ValueError(f"{name}: this one is there already; choose another name")
        if sum(backend.type == "app-server" for backend in backends.values()) > 1:
            raise ValueError("there is one app-server; use --workers for more children")
        return backends


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
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deep") from None
    except ValueError as error:  # what TOML forbids, and numbers that Python does
        raise ConfigError(f"{path}: {_at_line(str(error))}") from None
    return parse_config(data, text, str(path))


def parse_config(data: dict[str, Any], text: str, path: str) -> FileConfig:
    """The configuration in a file's `data`; `text` is what it was read from. Raises ConfigError."""
    try:
        config = FileConfig.model_validate(data)
    except ValidationError as error:
        faults = [(fault["loc"], _say(fault)) for fault in error.errors()]
        raise ConfigError("\n".join(_fault(path, text, loc, said) for loc, said in faults)) from None
    for key, said in _setting_faults(config.settings):
        raise ConfigError(_fault(path, text, ("settings", key), said))
    named = any(backend.type == "app-server" for backend in config.backends.values())
    known = {"mock", *(() if named else ("app-server",)), *config.backends}
    for place, names in (("default", [config.routing.default]), ("patterns", config.routing.patterns)):
        for name in names:
            if name is not None and name not in known:
                loc = ("routing", place) if place == "default" else ("routing", place, name)
                said = f"there is no backend {name!r}; there are {', '.join(sorted(known))}"
                raise ConfigError(_fault(path, text, loc, said))
    return config


def _setting_faults(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in settings:
        if key not in Settings.model_fields or key == "config":
            yield key, "there is no such setting"
        elif isinstance(settings[key], str) and "\0" in settings[key]:
            yield key, "there is a zero byte in it"
    try:
        Settings.model_validate(settings)
    except ValidationError as error:
        for fault in error.errors():
            name = setting_of(fault)
            field = Settings.model_fields.get(name)
            yield name, (rule_for(fault, field) if field is not None else None) or _say(fault)


def _fault(path: str, text: str, loc: Sequence[int | str], said: str) -> str:
    keys = [str(part) for part in loc]
    return f"{path}:{line_of(text, keys)}: {'.'.join(keys)}: {said}"


def _say(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "there is no such key"
    return str(fault["msg"]).removeprefix("Value error, ")


def _at_line(message: str) -> str:
    return message[:1].lower() + message[1:]


_PART = r"(?:[A-Za-z0-9_-]+|\"(?:[^\"\\]|\\.)*\"|'[^']*')"
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADING = re.compile(rf"\s*\[\[?\s*(?P<name>{_DOTTED})\s*\]")
_KEY = re.compile(rf"\s*(?P<key>{_DOTTED})\s*=")
_LONG_TEXT = re.compile(r"\"{3}|'{3}")


def line_of(text: str, keys: Sequence[str]) -> int:
    """The line on which a key stands, or the nearest table or key above it; the parser does not tell."""
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
        # A table within the one that is meant is nearer than nothing, but not as near as that table itself.
        score = 2 * shared + (shared == len(here)) if shared else 0
        if score > best:
            best, line = score, number
    return line


def _split(dotted: str) -> list[str]:
    """The parts of a dotted key, as TOML reads them."""
    try:
        data: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return []
    parts = []
    while isinstance(data, dict):
        ((part, data),) = data.items()
        parts.append(part)
    return parts
