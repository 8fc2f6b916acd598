"""Flags made from declarations, so that no command repeats a name, a default or a help text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_origin, get_type_hints

import typer

from bridge.errors import UsageError

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


def check_choice(option: str, value: str | None, choices: Sequence[str]) -> None:
    """Raise UsageError for any other value; None means that the option was not given."""
    if value is not None and value not in choices:
        raise UsageError(f"Invalid {option} {value[:40]!r}. Choose one of {', '.join(choices)}.")


def flag(panel: str, help: str, *names: str, default: Any = None, secret: bool = False, **options: Any) -> Any:
    """Declare an option as a field of a dataclass; `panel` is its group in --help. A secret is not in the repr."""
    option = typer.Option(*names, help=help, rich_help_panel=panel, **options)
    return field(default=default, repr=not secret, metadata={"option": option})


def same_flag(declared: type[Any], name: str) -> Any:
    """The declaration of a flag in another dataclass, for a field of the same name and type."""
    found = next(each for each in fields(declared) if each.name == name)
    return field(default=found.default, repr=found.repr, metadata=found.metadata)


def dataclass_flags(declared: type[Any]) -> Callable[[_Command], _Command]:
    """Decorate a command: it gets an option for each field of a dataclass, and their values as `flags`."""
    hints, options = get_type_hints(declared), []
    for each in fields(declared):
        kind, default, option = hints[each.name], each.default, each.metadata["option"]
        if get_origin(kind) is tuple:
            kind, default = list[str] | None, None
        if kind is bool and not option.param_decls:
            option.param_decls = (f"--{each.name.replace('_', '-')}",)  # without its negation
        options.append(_parameter(each.name, Annotated[kind, option], default))
    defaults = {each.name: each.default for each in fields(declared)}

    def values(typed: Flags) -> Flags:
        return {name: defaults[name] if value is None else value for name, value in typed.items()}

    return lambda command: _with_flags(command, options, values)


def text_flags(options: Mapping[str, Any], values: Callable[[Flags], Any], name: str) -> Callable[[_Command], _Command]:
    """Decorate a command: it gets these options with a text each, and what `values` makes of them as `name`."""
    parameters = [_parameter(option, Annotated[str | None, declared]) for option, declared in options.items()]
    return lambda command: _with_flags(command, parameters, values, name)


def _with_flags(
    command: _Command, options: Sequence[inspect.Parameter], values: Callable[[Flags], Any], name: str = "flags"
) -> _Command:
    """The command with these options in place of its parameter `name`; typer reads them from the signature."""
    names = [option.name for option in options]

    def run(**typed: Any) -> Any:
        given = {option: _tuple(typed.pop(option)) for option in names}
        return command(**{name: values(given)}, **typed)

    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command, eval_str=True).parameters.values():
        parameters += options if each.name == name else [each.replace(kind=each.KEYWORD_ONLY)]
    run.__doc__, run.__name__, run.__module__ = command.__doc__, command.__name__, command.__module__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
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
