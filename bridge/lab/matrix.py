"""The variants of a run: every combination of the levels that its options give, one dimension per option."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

from bridge.errors import UsageError
from bridge.lab.changes import SCHEMA_STYLES, Changes, How
from bridge.lab.suite.document import Fault, raise_faults, read_document
from bridge.lab.suite.models import ToolChangeShape, check_shape
from bridge.lab.variant import LabVariant, find_variants, read_text, tool_changes

if TYPE_CHECKING:
    from bridge.lab.commands import Sources

AS_IS = "as-is"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
MOST_VARIANTS = 1_000


class Level(NamedTuple):
    """A level of a dimension, and what it changes; None is the variant's own."""

    name: str
    changes: Changes | None


def build_variants(sources: Sources, default: Iterable[str]) -> dict[str, LabVariant]:
    """The variants by name, in the order of the options. Raises UsageError for an unusable level."""
    variants = find_variants(sources.variant or default)
    dimensions: dict[str, list[Level]] = {
        "instructions": list(_distinct("instructions", map(_instructions, sources.instructions))),
        "tools": list(_distinct("tools", map(_tools, sources.tools))),
        "schemas": list(_distinct("schemas", map(_schemas, sources.schemas))),
        "effort": list(_distinct("effort", map(_effort, sources.effort))),
        "temperature": list(_distinct("temperature", map(_temperature, sources.temperature))),
    }
    given = {name: levels for name, levels in dimensions.items() if levels}
    combinations = [(base, chosen) for base in variants.values() for chosen in product(*given.values())]
    if len(combinations) > MOST_VARIANTS:
        raise UsageError(f"The options give {len(combinations):,} variants. The most is {MOST_VARIANTS:,}.")
    built = [_combine(base, dict(zip(given, chosen, strict=True))) for base, chosen in combinations]
    return {variant.name: variant for variant in built}


def _combine(base: LabVariant, chosen: Mapping[str, Level]) -> LabVariant:
    if not chosen:
        return base
    changes = base.changes
    for dimension, level in chosen.items():
        if level.changes is None:
            continue
        value = getattr(level.changes, dimension)
        if dimension == "instructions":
            value = (*changes.instructions, *value)
        elif dimension == "tools":
            value = {**changes.tools, **value}
        changes = replace(changes, **{dimension: value})
    levels = (("variant", base.name), *((dimension, level.name) for dimension, level in chosen.items()))
    name = "/".join([base.name, *(f"{dimension}={level.name}" for dimension, level in chosen.items())])
    return replace(base, name=name, changes=changes, levels=levels)


def _distinct(dimension: str, levels: Iterable[Level]) -> Iterator[Level]:
    known: dict[str, Level] = {}
    for level in levels:
        if (before := known.setdefault(level.name, level)) != level:
            raise UsageError(f"--{dimension}: two different levels are called {level.name}. Rename a file.")
        if before is level:
            yield level


def _instructions(text: str) -> Level:
    if text == AS_IS:
        return Level(AS_IS, None)
    how, _, file = text.partition(":")
    for known in get_args(How):
        if how == known and file:
            path = Path(file)
            read = read_text(path.name, path, "--instructions")
            return Level(f"{how}:{path.name}", Changes(instructions=((known, read.rstrip("\n")),)))
    raise UsageError(f"Invalid --instructions '{text[:80]}'. Choose as-is, replace:FILE, prepend:FILE or append:FILE.")


def _tools(text: str) -> Level:
    if text == AS_IS:
        return Level(AS_IS, None)
    faults: list[Fault] = []
    path = Path(text)
    document = read_document(path, faults)
    if document is not None:
        check_shape(document.data, "tool changes", document.report)
    raise_faults(faults)
    assert document is not None
    shapes = {name: ToolChangeShape.model_validate(shape) for name, shape in document.data.items()}
    return Level(path.stem, Changes(tools=tool_changes(shapes)))


def _schemas(text: str) -> Level:
    for style in SCHEMA_STYLES:
        if text == style:
            return Level(style, Changes(schemas=style))
    raise UsageError(f"Invalid --schemas '{text[:80]}'. Choose {', '.join(SCHEMA_STYLES)}.")


def _effort(text: str) -> Level:
    if text == AS_IS:
        return Level(AS_IS, None)
    if text not in EFFORTS:
        raise UsageError(f"Invalid --effort '{text[:80]}'. Choose as-is, {', '.join(EFFORTS)}.")
    return Level(text, Changes(effort=text))


def _temperature(text: str) -> Level:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise UsageError(f"Invalid --temperature '{text[:80]}'. Give a number from 0 to 2.")
    return Level(f"{value:g}", Changes(temperature=value))
