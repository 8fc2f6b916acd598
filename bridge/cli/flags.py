"""Flags made from declarations, so that no command repeats a name, a default or a help text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

import typer

if TYPE_CHECKING:
    from bridge.settings import Setting

Flags: TypeAlias = dict[str, Any]
"""The values of flags by name; a setting whose flag was not given is None."""
_Command: TypeAlias = Callable[..., Any]

_SWITCHED = {"log_level": "debug"}
"""Values of settings whose flag takes none."""
_METAVARS = {"seconds": "SECONDS", "bytes": "BYTES"}


def setting_flags(names: Sequence[str] = (), *, grouped: bool = False) -> Callable[[_Command], _Command]:
    """Decorate a command: it gets a flag for each of these settings, or for all, and their values as `flags`."""
    from bridge.settings import SETTINGS

    wanted = names or [name for name, setting in SETTINGS.items() if setting.flags]

    def values(typed: Flags) -> Flags:
        return {name: _SWITCHED.get(name, value) if value else value for name, value in typed.items()}

    return lambda command: _with_flags(command, [_setting(SETTINGS[name], grouped) for name in wanted], values)


def dataclass_flags(declared: type[Any]) -> Callable[[_Command], _Command]:
    """Decorate a command: it gets an option for each field of a dataclass, and their values as `flags`."""
    hints = get_type_hints(declared, include_extras=True)
    options = []
    for field in fields(declared):
        annotation, default = hints[field.name], field.default
        if "option" in field.metadata:
            annotation = Annotated[annotation, field.metadata["option"]]
        kind, option = get_args(annotation)
        if get_origin(kind) is tuple:
            annotation, default = Annotated[list[str] | None, option], None
        options.append(_parameter(field.name, annotation, default))
    defaults = {field.name: field.default for field in fields(declared)}

    def values(typed: Flags) -> Flags:
        return {name: defaults[name] if value is None else value for name, value in typed.items()}

    return lambda command: _with_flags(command, options, values)


def _with_flags(command: _Command, options: Sequence[inspect.Parameter], values: Callable[[Flags], Flags]) -> _Command:
    """The command with these options in place of its parameter `flags`; typer reads them from the signature."""
    names = [option.name for option in options]

    def run(**typed: Any) -> Any:
        given = {name: _tuple(typed.pop(name)) for name in names}
        return command(flags=values(given), **typed)

    own: Iterable[inspect.Parameter] = inspect.signature(command, eval_str=True).parameters.values()
    kept = [each.replace(kind=each.KEYWORD_ONLY) for each in own if each.name != "flags"]
    run.__doc__, run.__name__, run.__module__ = command.__doc__, command.__name__, command.__module__
    run.__signature__ = inspect.Signature([*options, *kept])  # type: ignore[attr-defined]
    return run


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _tuple(typed: Any) -> Any:
    """A repeated flag gives a list, an empty one when it is absent."""
    return tuple(typed) or None if isinstance(typed, list) else typed


def _setting(setting: Setting, grouped: bool) -> inspect.Parameter:
    switch = bool in setting.kinds or setting.name in _SWITCHED
    choices = () if switch else setting.choices
    described = "; ".join(filter(None, (setting.variable, "" if switch else setting.default)))
    option = typer.Option(
        *setting.flags,
        help=f"{setting.help} [{described}]",
        metavar=None if switch else _metavar(setting),
        rich_help_panel=setting.group if grouped else None,
        autocompletion=(lambda: list(choices)) if choices else None,
    )
    return _parameter(setting.name, Annotated[_type(setting, switch), option])


def _type(setting: Setting, switch: bool) -> Any:
    """What typer reads. Choices stay text: `load_settings` reports all invalid values at once, in one form."""
    if switch:
        return bool | None
    if setting.is_list:
        return list[str] | None
    kind = next((kind for kind in setting.kinds if kind in (int, float, Path)), str)
    return kind | None


def _metavar(setting: Setting) -> str:
    if setting.choices:
        return f"[{'|'.join(setting.choices)}]"
    return setting.extra["metavar"] or _METAVARS.get(setting.extra["unit"]) or "N"
