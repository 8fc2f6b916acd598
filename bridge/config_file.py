"""The configuration file: backends, routing and settings, as TOML. Every fault names the file, the line, the key."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bridge.config import Settings, load_settings
from bridge.errors import ConfigError
from bridge.urls import check_url, is_header_safe

MAX_FILE = 1024 * 1024
BackendType = Literal["app-server", "codex", "anthropic", "openai", "responses", "mock"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-type", "accept"})


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class BackendConfig(_Table):
    """One `[backends.NAME]`."""

    type: BackendType
    preset: str | None = None
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
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

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

    @model_validator(mode="after")
    def _one_key(self) -> BackendConfig:
        given = [name for name in ("key", "key_env", "credentials") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: give one of them")
        if given and self.type in ("app-server", "mock"):
            raise ValueError(f"{given[0]}: a backend of type {self.type} takes no key")
        if self.type == "codex" and (given or self.headers or self.discovery):
            raise ValueError("a backend of type codex has Codex's login, and takes no key, headers or discovery")
        if self.credentials is not None and self.type != "anthropic":
            raise ValueError("credentials: only a backend of type anthropic has them")
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


class FileConfig(_Table):
    """The whole file."""

    backends: dict[str, BackendConfig] = {}
    routing: RoutingConfig = RoutingConfig()
    settings: dict[str, Any] = {}

    @field_validator("backends")
    @classmethod
    def _names(cls, backends: dict[str, BackendConfig]) -> dict[str, BackendConfig]:
        for name in backends:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name[:40]!r}: a backend's name has letters, digits or any of _ . -")
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
    except tomllib.TOMLDecodeError as error:
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
    known = {"app-server", "mock", *config.backends}
    for place, names in (("default", [config.routing.default]), ("patterns", config.routing.patterns)):
        for name in names:
            if name is not None and name not in known:
                loc = ("routing", place) if place == "default" else ("routing", place, name)
                said = f"there is no backend {name!r}; there are {', '.join(sorted(known))}"
                raise ConfigError(_fault(path, text, loc, said))
    return config


def _setting_faults(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    names = {str(field.validation_alias): name for name, field in Settings.model_fields.items()}
    for key in settings:
        if key not in Settings.model_fields or key == "config":
            yield key, "there is no such setting"
    try:
        Settings.model_validate(settings)
    except ValidationError as error:
        for fault in error.errors():
            place = str(fault["loc"][0]) if fault["loc"] else ""
            yield names.get(place, place), _say(fault)


def _fault(path: str, text: str, loc: Sequence[int | str], said: str) -> str:
    keys = [str(part) for part in loc]
    return f"{path}:{line_of(text, keys)}: {'.'.join(keys)}: {said}"


def _say(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "there is no such key"
    return str(fault["msg"]).removeprefix("Value error, ")


def _at_line(message: str) -> str:
    return message[:1].lower() + message[1:]


_HEADING = re.compile(r"\s*\[\[?\s*(?P<name>[^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_PART = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_KEY = re.compile(rf"\s*(?P<key>{_PART}(?:\s*\.\s*{_PART})*)\s*=")


def line_of(text: str, keys: Sequence[str]) -> int:
    """The line on which a key stands, or the nearest table or key above it; the parser does not tell."""
    table: list[str] = []
    best, line = 0, 1
    for number, content in enumerate(text.splitlines(), 1):
        if heading := _HEADING.match(content):
            here = table = _split(heading["name"])
        elif key := _KEY.match(content):
            here = [*table, *_split(key["key"])]
        else:
            continue
        depth = len(here)
        if depth > best and here == list(keys[:depth]):
            best, line = depth, number
    return line


def _split(dotted: str) -> list[str]:
    parts = re.findall(r"\"[^\"]*\"|'[^']*'|[^.\s]+", dotted)
    return [part.strip("\"'") for part in parts]
