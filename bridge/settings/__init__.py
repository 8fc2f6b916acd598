"""Reads settings from flags, the environment and the configuration file, and explains invalid ones.

A flag wins over the environment, the environment over the file, the file over the default. An invalid value stops the
program at start with the setting's name and rule; it is never guessed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import platformdirs
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from bridge import APP
from bridge.errors import ConfigError
from bridge.settings.model import SAME
from bridge.settings.model import Settings as Settings


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of one setting, for flags, messages and documentation."""

    name: str
    field: FieldInfo
    extra: Mapping[str, str]

    @property
    def variable(self) -> str:
        return self.extra["variable"] or f"PROXY_{self.name.upper()}"

    @property
    def group(self) -> str:
        return self.extra["group"]

    @property
    def flags(self) -> list[str]:
        """The flags of `serve`, the long one first; none for a setting that has no flag."""
        return [self.usual_flag] if self.extra["flags"] == SAME else self.extra["flags"].split()

    @property
    def usual_flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def help(self) -> str:
        return self.field.description or ""

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types of a value, without None."""
        kinds = () if self.is_list else get_args(self.field.annotation)
        return tuple(kind for kind in kinds or (self.field.annotation,) if kind is not NoneType)

    @property
    def is_list(self) -> bool:
        return get_origin(self.field.annotation) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        return self.kinds if get_origin(self.field.annotation) is Literal else ()

    @property
    def range(self) -> str:
        """The limits of a number, in words; empty for anything else."""
        limits = {
            name: getattr(each, name)
            for each in self.field.metadata
            for name in ("gt", "ge", "le")
            if hasattr(each, name)
        }
        if "gt" in limits:
            return f" above {limits['gt']}"
        if "le" in limits:
            return f" from {limits['ge']} to {limits['le']}"
        return f", {limits['ge']} or more" if "ge" in limits else ""

    @property
    def rule(self) -> str:
        """What a value may be, for a setting with choices or a number."""
        if self.choices:
            return f"choose one of {', '.join(self.choices)}"
        if bool in self.kinds:
            return "choose one of true, false"
        return f"use a {'whole ' if int in self.kinds else ''}number{self.range}"

    @property
    def default(self) -> str:
        """The default as a person would write it; empty when there is none."""
        if self.extra["shown"]:
            return self.extra["shown"]
        value = self.field.default
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return ", ".join(value)
        return "" if value is None or value == {} else str(value)


SETTINGS: Mapping[str, Setting] = {
    name: Setting(name, field, field.json_schema_extra)  # type: ignore[arg-type]  # what `model._setting` puts there
    for name, field in Settings.model_fields.items()
}
"""All settings by name, in the order of their groups."""

_OTHER_FLAGS = {"cap_model": "--model"}
"""Flags of commands other than `serve` that are not named after their settings."""


def load_settings(
    environment: Mapping[str, str] = os.environ, file: Mapping[str, Any] | None = None, **flags: Any
) -> Settings:
    """Settings from the environment (empty variables count as unset), overridden by the flags that are not None.

    `file` is the table `[settings]` of the configuration file, already checked. Raises ConfigError with a line for each
    invalid value.
    """
    values: dict[str, Any] = dict(file or {})
    sources = {name: f"settings.{name}" for name in values}
    for name, setting in SETTINGS.items():
        if flags.get(name) is not None:
            values[name], sources[name] = flags[name], _flag(setting)
        elif environment.get(setting.variable):
            values[name], sources[name] = environment[setting.variable], setting.variable
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_line(fault, sources, values) for fault in error.errors())) from None


def _flag(setting: Setting) -> str:
    return next(iter(setting.flags), None) or _OTHER_FLAGS.get(setting.name, setting.usual_flag)


def _line(fault: ErrorDetails, sources: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """A line that names the flag or variable of the value, and the value itself where it cannot be a secret."""
    name = str(fault["loc"][0])
    source, rule = sources.get(name, name), rule_for(fault)
    if rule is None:
        return f"{source}: {reason_of(fault)}"
    value = str(values[name])[:40]
    joint = " " if source.startswith("--") else "="
    return f"{source}{joint}{value if value.isprintable() else repr(value)}: {rule}"


def reason_of(fault: ErrorDetails) -> str:
    return fault["msg"].removeprefix("Value error, ")


_RULED = ("literal", "bool", "int", "float", "finite", "greater", "less")
"""How pydantic's names of faults begin that `Setting.rule` explains."""


def rule_for(fault: ErrorDetails) -> str | None:
    """The rule of the setting, or None when the fault is about something else."""
    return SETTINGS[str(fault["loc"][0])].rule if fault["type"].startswith(_RULED) else None


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that look like settings of ours but are not: probably misspelt."""
    known = {setting.variable for setting in SETTINGS.values()}
    return sorted(name for name in environment if name.startswith("PROXY_") and name not in known)


# Files that the bridge keeps for itself

_FORMER_NAME = "codex-bridge"
"""The program's name before it turned out that another project owns it on PyPI."""


def state_dir() -> Path:
    """The directory of the API key, stored responses and results of `lab run`.

    The first program that looks for it renames a directory of the former name.
    """
    path, former = (Path(platformdirs.user_state_path(name)) for name in (APP, _FORMER_NAME))
    if not path.exists() and former.is_dir():
        with suppress(OSError):  # another process was faster, or it is not permitted
            former.rename(path)
    return path


def store_file() -> Path:
    """The database of stored responses, conversations and usage."""
    return state_dir() / "bridge.sqlite3"


def api_key_file() -> Path:
    """The file with the key made at first start."""
    return state_dir() / "api-key"


def key_store_file() -> Path:
    """The file with the hashes and limits of the keys made by `keys add`."""
    return state_dir() / "keys.json"


def lab_results_dir() -> Path:
    """Where `lab run` keeps its results, unless a flag names another file."""
    return state_dir() / "lab"
