"""Every setting once: default < environment < flag.

Names are those of seed 003 and of Codex itself. A wrong value stops the program at start, with the name of the setting
and what it may be; it is never sent or guessed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bridge.errors import ConfigError

APP = "codex-bridge"


def state_dir() -> Path:
    """Where the bridge keeps what it makes for itself (API key, model catalog)."""
    return Path(platformdirs.user_state_path(APP))


def _split(value: Any) -> Any:
    """`a, b` → ("a", "b"); already a list: as it is."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _pair(value: Any) -> Any:
    """`a=b, c=d` → {"a": "b", "c": "d"}."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in _split(value)]
    if not all(name.strip() and target.strip() for name, _, target in pairs):
        raise ValueError("write it as alias=model, alias=model")
    return {name.strip(): target.strip() for name, _, target in pairs}


class Settings(BaseModel):
    """All settings of `codex-bridge serve`; the alias of a field is its environment variable."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True, hide_input_in_errors=True)

    host: str = Field("127.0.0.1", validation_alias="PROXY_HOST")
    port: int = Field(11435, ge=0, le=65535, validation_alias="PORT")
    api_keys: tuple[str, ...] = Field((), validation_alias="PROXY_API_KEY", repr=False)

    codex_bin: str | None = Field(None, validation_alias="CODEX_BIN")
    codex_home: Path | None = Field(None, validation_alias="CODEX_HOME")
    mock_only: bool = Field(False, validation_alias="PROXY_MOCK_ONLY")
    dialect: Literal["auto", "current", "legacy"] = Field("auto", validation_alias="PROXY_DIALECT")
    tool_mode: Literal["auto", "text"] = Field("auto", validation_alias="PROXY_TOOL_MODE")
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

    log_events: Path | None = Field(None, validation_alias="PROXY_LOG_EVENTS")

    max_body: int = Field(20 * 1024 * 1024, ge=1024, validation_alias="PROXY_MAX_BODY")
    max_turns: int = Field(256, ge=1, validation_alias="PROXY_MAX_TURNS")
    rpc_timeout: float = Field(30, gt=0, validation_alias="PROXY_RPC_TIMEOUT")
    first_event_timeout: float = Field(120, gt=0, validation_alias="PROXY_FIRST_EVENT_TIMEOUT")
    idle_timeout: float = Field(300, gt=0, validation_alias="PROXY_IDLE_TIMEOUT")
    turn_timeout: float = Field(3600, gt=0, validation_alias="PROXY_TURN_TIMEOUT")
    write_timeout: float = Field(60, gt=0, validation_alias="PROXY_WRITE_TIMEOUT")
    keepalive: float = Field(15, gt=0, validation_alias="PROXY_KEEPALIVE")
    grace: float = Field(20, ge=0, validation_alias="PROXY_GRACE")

    _lists = field_validator("api_keys", "models", mode="before")(_split)
    _pairs = field_validator("aliases", mode="before")(_pair)

    @field_validator("tool_mode", mode="before")
    @classmethod
    def _no_native_yet(cls, value: Any) -> Any:
        if value == "native":
            raise ValueError("native tools are not in this version; text works with every Codex")
        return value

    @field_validator("api_keys")
    @classmethod
    def _no_empty_key(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if any(not key.strip() for key in keys):
            raise ValueError("an API key must not be empty")
        return keys

    @property
    def codex_home_path(self) -> Path:
        """The CODEX_HOME that the child uses."""
        return self.codex_home or Path.home() / ".codex"


def load_settings(environment: Mapping[str, str] = os.environ, **flags: Any) -> Settings:
    """Settings from the environment (empty variables count as unset), overridden by the flags that are not None.

    Raises ConfigError with a line for each fault.
    """
    values: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        variable = str(field.validation_alias)
        if flags.get(name) is not None:
            values[variable] = flags[name]
        elif environment.get(variable):
            values[variable] = environment[variable]
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{_name(fault)}: {_say(fault)}" for fault in error.errors())) from None


def _name(fault: Any) -> str:
    return str(fault["loc"][0]) if fault["loc"] else "settings"


def _say(fault: Any) -> str:
    return str(fault["msg"]).removeprefix("Value error, ")


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that look like settings of ours but are none: probably misspelt."""
    known = {str(field.validation_alias) for field in Settings.model_fields.values()}
    return sorted(name for name in environment if name.startswith("PROXY_") and name not in known)


def api_key_file() -> Path:
    """The file that holds the key made at first start."""
    return state_dir() / "api-key"
