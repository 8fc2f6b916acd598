"""Every setting once: default < configuration file < environment < flag.

Names are those of seed 003 and of Codex itself. A wrong value stops the program at start, with the name of the setting
and what it may be; it is never sent or guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin
from uuid import UUID

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from bridge.errors import ConfigError
from bridge.urls import check_url

APP = "codex-bridge"


def state_dir() -> Path:
    """Where the bridge keeps what it makes for itself (API key, model catalog, results of `lab run`)."""
    return Path(platformdirs.user_state_path(APP))


def _split(value: Any) -> Any:
    """`a, b` → ("a", "b"); already a list: as it is."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


_PAIRS = {"cap_agents": "agent=model", "cap_users": "key-0123456789ab=user"}


def _pair(value: Any, info: ValidationInfo) -> Any:
    """`a=b, c=d` → {"a": "b", "c": "d"}."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in _split(value)]
    if not all(name.strip() and target.strip() for name, _, target in pairs):
        form = _PAIRS.get(info.field_name or "", "alias=model")
        raise ValueError(f"write it as {form}, {form}")
    return {name.strip(): target.strip() for name, _, target in pairs}


_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
)
_HOST = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
_USUAL_PORTS = {"http": 80, "https": 443}


def _origin(text: str) -> str:
    """An origin as a browser writes it: lower case, without a last slash, without the scheme's usual port."""
    if "*" in text:
        raise ValueError("* would let pages in that you have never heard of; name each origin")
    if text.lower() == "null":
        raise ValueError("null is what a sandboxed frame of any site calls itself; name each origin")
    found = _ORIGIN.fullmatch(text.lower().removesuffix("/"))
    if found is None or int(found["port"] or 0) > 65535:
        raise ValueError(f"{text[:80]!r} is no origin; write scheme://host or scheme://host:port, or none alone")
    scheme, host, port = found["scheme"], found["host"], int(found["port"] or 0)
    return f"{scheme}://{host}" + ("" if port in (0, _USUAL_PORTS.get(scheme)) else f":{port}")


def _host(text: str) -> str:
    """A host's name or address as a Host header has it, in lower case, without a port and a last dot."""
    host = text.lower().removesuffix(".")
    if "*" in host:
        raise ValueError("* would let every name in; name each host")
    if _HOST.fullmatch(host) is None:
        raise ValueError(f"{text[:80]!r} is no host; write a name or an address, without scheme and port")
    return host


def _absolute(path: Path) -> Path:
    # os.path.expanduser leaves `~nobody` as it is, where Path.expanduser raises.
    return Path(os.path.expanduser(path)).absolute()


class Settings(BaseModel):
    """All settings of `codex-bridge serve`; the alias of a field is its environment variable."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True, hide_input_in_errors=True)

    host: str = Field("127.0.0.1", validation_alias="PROXY_HOST")
    port: int = Field(11435, ge=0, le=65535, validation_alias="PORT")
    api_keys: tuple[str, ...] = Field((), validation_alias="PROXY_API_KEY", repr=False)
    allowed_origins: tuple[str, ...] = Field(("app://obsidian.md",), validation_alias="PROXY_ALLOWED_ORIGINS")
    allowed_hosts: tuple[str, ...] = Field((), validation_alias="PROXY_ALLOWED_HOSTS")
    tls_cert: Path | None = Field(None, validation_alias="PROXY_TLS_CERT")
    tls_key: Path | None = Field(None, validation_alias="PROXY_TLS_KEY")

    codex_bin: str | None = Field(None, validation_alias="CODEX_BIN")
    codex_home: Path | None = Field(None, validation_alias="CODEX_HOME")
    mock_only: bool = Field(False, validation_alias="PROXY_MOCK_ONLY")
    codex_base_url: str = Field("https://chatgpt.com/backend-api/codex", validation_alias="PROXY_CODEX_BASE_URL")
    codex_api_base_url: str = Field("https://api.openai.com/v1", validation_alias="PROXY_CODEX_API_BASE_URL")
    codex_token_url: str = Field("https://auth.openai.com/oauth/token", validation_alias="PROXY_CODEX_TOKEN_URL")
    dialect: Literal["auto", "current", "legacy"] = Field("auto", validation_alias="PROXY_DIALECT")
    tool_mode: Literal["auto", "text", "native"] = Field("auto", validation_alias="PROXY_TOOL_MODE")
    web_search: Literal["off", "cached", "live"] = Field("off", validation_alias="PROXY_WEB_SEARCH")
    enforce_max_tokens: bool = Field(True, validation_alias="PROXY_ENFORCE_MAX_TOKENS")
    kept_threads: int = Field(32, ge=0, le=1024, validation_alias="PROXY_KEPT_THREADS")
    legacy_calls: Literal["auto", "both", "turn", "message"] = Field("auto", validation_alias="PROXY_LEGACY_CALLS")
    workers: int = Field(1, ge=1, le=64, validation_alias="PROXY_WORKERS")
    native_tools: bool = Field(False, validation_alias="PROXY_NATIVE_TOOLS")
    models: tuple[str, ...] = Field((), validation_alias="PROXY_MODELS")

    workdir: Path = Field(Path("/tmp/codex-work"), validation_alias="PROXY_CODEX_WORKDIR")  # noqa: S108
    approval_policy: Literal["untrusted", "on-failure", "on-request", "never"] = Field(
        "never", validation_alias="PROXY_APPROVAL_POLICY"
    )
    sandbox_mode: Literal["read-only", "workspace-write", "danger-full-access"] = Field(
        "read-only", validation_alias="PROXY_SANDBOX_MODE"
    )
    include_apply_patch_tool: bool = Field(False, validation_alias="PROXY_INCLUDE_APPLY_PATCH_TOOL")
    responses_skip_turn: bool = Field(False, validation_alias="PROXY_RESPONSES_SKIP_TURN")
    responses_omit_tool_manifest: bool = Field(False, validation_alias="PROXY_RESPONSES_OMIT_TOOL_MANIFEST")
    ignore_client_system_prompt: bool | None = Field(None, validation_alias="PROXY_IGNORE_CLIENT_SYSTEM_PROMPT")

    stream_default: bool = Field(False, validation_alias="PROXY_STREAM_DEFAULT")
    aliases: dict[str, str] = Field({}, validation_alias="PROXY_MODEL_ALIASES")
    list_models: Literal["all", "models"] = Field("all", validation_alias="PROXY_LIST_MODELS")
    """`models`: GET /v1/models leaves out aliases and names with efforts."""
    unsupported: Literal["drop", "reject"] = Field("drop", validation_alias="PROXY_UNSUPPORTED")
    reasoning: Literal["content", "think", "hidden"] = Field("content", validation_alias="PROXY_REASONING")

    cap_model: str | None = Field(None, validation_alias="PROXY_CAP_MODEL")
    cap_agents: dict[str, str] = Field({}, validation_alias="PROXY_CAP_AGENTS")
    """Models by the ids of CAP's agents."""
    cap_users: dict[str, str] = Field({}, validation_alias="PROXY_CAP_USERS")
    """Ids of CAP's users by the labels of their keys."""
    cap_grace: float = Field(30, ge=0, le=3600, allow_inf_nan=False, validation_alias="PROXY_CAP_GRACE")
    cap_stream_default: bool = Field(False, validation_alias="PROXY_CAP_STREAM_DEFAULT")
    cap_strict: bool = Field(False, validation_alias="PROXY_CAP_STRICT")
    cap_agent_id: UUID | None = Field(None, validation_alias="PROXY_CAP_AGENT_ID")

    store: Literal["sqlite", "memory", "off"] = Field("sqlite", validation_alias="PROXY_STORE")
    store_ttl: float = Field(30 * 24 * 3600, gt=0, validation_alias="PROXY_STORE_TTL")
    store_max_bytes: int = Field(1024**3, ge=1024**2, validation_alias="PROXY_STORE_MAX_BYTES")

    config: Path | None = Field(None, validation_alias="PROXY_CONFIG")
    log_events: str | None = Field(None, min_length=1, validation_alias="PROXY_LOG_EVENTS")
    """As it was typed: a slash at its end makes it a directory."""
    log_max_bytes: int | None = Field(None, ge=0, validation_alias="PROXY_LOG_MAX_BYTES")
    """None: what suits a file or a directory."""
    log_max_age: float = Field(0, ge=0, allow_inf_nan=False, validation_alias="PROXY_LOG_MAX_AGE")
    log_keep: int = Field(0, ge=0, validation_alias="PROXY_LOG_KEEP")
    log_on_error: Literal["drop", "stop"] = Field("drop", validation_alias="PROXY_LOG_ON_ERROR")

    replay: Path | None = Field(None, validation_alias="PROXY_REPLAY")
    """A log to answer from."""
    on_miss: Literal["error", "forward", "nearest"] = Field("error", validation_alias="PROXY_ON_MISS")
    speed: float = Field(0, ge=0, allow_inf_nan=False, validation_alias="PROXY_REPLAY_SPEED")
    ignore: tuple[str, ...] = Field((), validation_alias="PROXY_REPLAY_IGNORE")

    log_format: Literal["console", "json"] = Field("console", validation_alias="PROXY_LOG_FORMAT")
    """Of what the program says on stderr."""
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", validation_alias="PROXY_LOG_LEVEL")
    otlp_endpoint: str | None = Field(None, min_length=1, validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT")
    """Where traces go. The name, and that of all that belongs to it, is OpenTelemetry's."""

    max_body: int = Field(20 * 1024 * 1024, ge=1024, validation_alias="PROXY_MAX_BODY")
    max_connections: int = Field(900, ge=1, validation_alias="PROXY_MAX_CONNECTIONS")
    max_turns: int = Field(256, ge=1, validation_alias="PROXY_MAX_TURNS")
    max_queue: int = Field(64, ge=0, le=10_000, validation_alias="PROXY_MAX_QUEUE")
    queue_timeout: float = Field(10, ge=0, le=600, allow_inf_nan=False, validation_alias="PROXY_QUEUE_TIMEOUT")
    max_rss: int = Field(0, ge=0, validation_alias="PROXY_MAX_RSS")
    """Bytes of memory in use above which no turn is taken; 0: no such limit."""
    rpc_timeout: float = Field(30, gt=0, validation_alias="PROXY_RPC_TIMEOUT")
    first_event_timeout: float = Field(120, gt=0, validation_alias="PROXY_FIRST_EVENT_TIMEOUT")
    idle_timeout: float = Field(300, gt=0, validation_alias="PROXY_IDLE_TIMEOUT")
    turn_timeout: float = Field(3600, gt=0, validation_alias="PROXY_TURN_TIMEOUT")
    write_timeout: float = Field(60, gt=0, validation_alias="PROXY_WRITE_TIMEOUT")
    keepalive: float = Field(15, gt=0, validation_alias="PROXY_KEEPALIVE")
    grace: float = Field(20, ge=0, validation_alias="PROXY_GRACE")
    drain_delay: float = Field(0, ge=0, le=600, allow_inf_nan=False, validation_alias="PROXY_DRAIN_DELAY")
    """Seconds between the signal to stop and the end of accepting, in which /readyz answers 503."""

    _lists = field_validator("api_keys", "models", "ignore", "allowed_hosts", mode="before")(_split)
    _pairs = field_validator("aliases", "cap_agents", "cap_users", mode="before")(_pair)

    @field_validator("api_keys")
    @classmethod
    def _no_empty_key(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if any(not key.strip() for key in keys):
            raise ValueError("an API key must not be empty")
        return keys

    @field_validator("codex_home", "workdir")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        """The child runs in another working directory, where a relative path would mean something else."""
        return path and _absolute(path)

    @field_validator("codex_bin")
    @classmethod
    def _program(cls, program: str | None) -> str | None:
        """A name without a slash is looked up on PATH."""
        return str(_absolute(Path(program))) if program and "/" in program else program

    @field_validator("codex_base_url", "codex_api_base_url", "codex_token_url")
    @classmethod
    def _safe_urls(cls, url: str) -> str:
        return check_url(url)

    @field_validator("allowed_origins", mode="before")
    @classmethod
    def _none_of_them(cls, value: Any) -> Any:
        """`none` is how a variable says "no origin": an empty one counts as unset."""
        return () if isinstance(value, str) and value.strip().lower() == "none" else _split(value)

    @field_validator("allowed_origins")
    @classmethod
    def _exact_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_origin(text) for text in origins)

    @field_validator("allowed_hosts")
    @classmethod
    def _exact_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_host(text) for text in hosts)

    @property
    def codex_home_path(self) -> Path:
        """The CODEX_HOME that the child uses."""
        return self.codex_home or Path.home() / ".codex"


def load_settings(
    environment: Mapping[str, str] = os.environ, file: Mapping[str, Any] | None = None, **flags: Any
) -> Settings:
    """Settings from the environment (empty variables count as unset), overridden by the flags that are not None.

    `file` is the table `[settings]` of the configuration file, by the names of the fields; it has been checked. Raises
    ConfigError with a line for each fault.
    """
    values: dict[str, Any] = dict(file or {})
    sources = {name: f"settings.{name}" for name in values}
    for name, field in Settings.model_fields.items():
        variable = str(field.validation_alias)
        if flags.get(name) is not None:
            values[name], sources[name] = flags[name], _FLAGS.get(name, f"--{name.replace('_', '-')}")
        elif environment.get(variable):
            values[name], sources[name] = environment[variable], variable
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_line(fault, sources, values) for fault in error.errors())) from None


_FLAGS = {"api_keys": "--api-key", "log_level": "--verbose", "cap_model": "--model"}
"""Flags that are not called like their settings."""


def _line(fault: ErrorDetails, sources: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """A fault after the flag or the variable that the value came from, and the value where it cannot be a secret."""
    name = setting_of(fault)
    source, rule = sources.get(name, name), rule_for(fault, Settings.model_fields[name])
    if rule is None:
        return f"{source}: {reason_of(fault)}"
    value = str(values[name])[:40]
    joint = " " if source.startswith("--") else "="
    return f"{source}{joint}{value if value.isprintable() else repr(value)}: {rule}"


def setting_of(fault: ErrorDetails) -> str:
    """The name of the setting that a fault of `Settings` is about."""
    place = str(fault["loc"][0])
    variables = {str(field.validation_alias): name for name, field in Settings.model_fields.items()}
    return variables.get(place, place)


def reason_of(fault: ErrorDetails) -> str:
    """What is wrong, in the words of whoever found it."""
    return fault["msg"].removeprefix("Value error, ")


def rule_for(fault: ErrorDetails, field: FieldInfo) -> str | None:
    """What a setting may be: one of some words, or a number within limits. None where that is not what is wrong."""
    if not fault["type"].startswith(_RULED):
        return None
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not NoneType]
    if get_origin(field.annotation) is Literal:
        return f"choose one of {', '.join(kinds)}"
    if bool in kinds:
        return "choose one of true, false"
    number = "use a whole number" if int in kinds else "use a number"
    limits = {
        name: getattr(each, name) for each in field.metadata for name in ("gt", "ge", "le") if hasattr(each, name)
    }
    if "gt" in limits:
        return f"{number} above {limits['gt']}"
    if "le" in limits:
        return f"{number} from {limits['ge']} to {limits['le']}"
    return f"{number}, {limits['ge']} or more"


_RULED = ("literal", "bool", "int", "float", "finite", "greater", "less")
"""How pydantic's names of such faults begin."""


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that look like settings of ours but are none: probably misspelt."""
    known = {str(field.validation_alias) for field in Settings.model_fields.values()}
    return sorted(name for name in environment if name.startswith("PROXY_") and name not in known)


def store_file() -> Path:
    """The database of stored responses, conversations and usage."""
    return state_dir() / "bridge.sqlite3"


def api_key_file() -> Path:
    """The file that holds the key made at first start."""
    return state_dir() / "api-key"


def lab_results_dir() -> Path:
    """Where `lab run` keeps its results, unless it is told another file."""
    return state_dir() / "lab"


def key_store_file() -> Path:
    """The file that holds what is known of the clients' own keys."""
    return state_dir() / "keys.json"
