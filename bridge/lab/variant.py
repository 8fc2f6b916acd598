"""Variants: the prompts that are compared. Each is a wording of the injected text, and other changes to a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from bridge.errors import UsageError
from bridge.lab.case import Case, digest
from bridge.lab.changes import NO_CHANGES, Changes, How, ToolChange
from bridge.lab.formats import PromptFormat
from bridge.lab.suite.document import ENDINGS, Fault, raise_faults, read_document
from bridge.lab.suite.models import TextFile, ToolChangeShape, VariantShape, check_shape
from bridge.tools.instructions import SPEC, Variant, build_instructions
from bridge.tools.payload import TAG


class Tags(NamedTuple):
    """The tags around a call."""

    name: str

    @property
    def open(self) -> str:
        return f"<{self.name}>"

    @property
    def close(self) -> str:
        return f"</{self.name}>"


TAGS = Tags(TAG)
OBJECT_ARGUMENTS = frozenset({"arguments_coerced"})
"""Repairs that do not count if the wording asks for arguments as an object."""


@dataclass(frozen=True, slots=True)
class LabVariant:
    """How tools are offered: in a `wording`, or natively.

    With `nonce` each case has tags of its own, which no text can forge. `allows` are repairs that do not count because
    the wording asks for that form. Methods take the case as it is in the suite; `apply` makes the one that is asked.
    """

    name: str
    wording: Variant = SPEC
    native: bool = False
    nonce: bool = False
    allows: frozenset[str] = frozenset()
    changes: Changes = NO_CHANGES
    format: PromptFormat | None = None
    """A prompt instead of a wording, with a format of calls of its own."""
    levels: tuple[tuple[str, str], ...] = ()
    """(dimension, level) of each dimension of a matrix; empty for a variant by itself."""

    @property
    def fingerprint(self) -> str:
        """Changes with everything in a variant that matters to its results."""
        changed = () if self.changes == NO_CHANGES else (self.changes,)
        prompt = () if self.format is None else (self.format,)
        return digest(repr((self.wording, self.nonce, *changed, *prompt)))

    def apply(self, case: Case) -> Case:
        """The case as it is asked in this variant."""
        return self.changes.apply(case)

    def after_apply(self) -> LabVariant:
        """The same variant for cases that it has been applied to."""
        changes = Changes(effort=self.changes.effort, temperature=self.changes.temperature)
        return replace(self, changes=changes)

    def tags_for(self, case: Case) -> Tags:
        """The tags of calls in this case, the same every time."""
        if not self.nonce:
            return TAGS
        return Tags(f"tool_call_{blake2b(case.id.encode(), digest_size=3).hexdigest()}")

    def text_for(self, case: Case) -> str:
        """The injected text; empty if there is none."""
        if self.native or not case.tools:
            return ""
        case = self.apply(case)
        if self.format is not None:
            return self.format.text_for(case.tools)
        return build_instructions(
            case.tools,
            case.tool_choice,
            parallel=case.parallel,
            variant=self.wording,
            tag=self.tags_for(case).name,
        )


_SHORT_RULES = """\
The client executes the calls; a read-only sandbox does not prevent them. Never call internal tools yourself.
"arguments" is a JSON string with exactly the parameters of the schema ("{}" for none).
Nothing else stands between the tags: no array, no code fence, no comment. One call per pair of tags.
If no tool is needed, answer in plain text."""


def _with_object_arguments(block: str) -> str:
    """A block of the specification that asks for arguments as an object, not as a JSON string."""
    text = SPEC.blocks[block]
    for old, new in (
        (r'"{\"query\":\"example\",\"chatHistory\":[]}"', '{"query":"example","chatHistory":[]}'),
        ('"{...}"', "{...}"),
        ('arguments "{}"', "arguments {}"),
        ("a JSON string", "a JSON object"),
    ):
        text = text.replace(old, new)
    return text


SHIPPED: Mapping[str, LabVariant] = {
    variant.name: variant
    for variant in (
        LabVariant("spec"),
        LabVariant("no-bad-example", Variant("no-bad-example", {"bad_example": ""})),
        LabVariant("short", Variant("short", {"rules": _SHORT_RULES, "bad_example": ""})),
        LabVariant(
            "json-args-object",
            Variant(
                "json-args-object",
                {block: _with_object_arguments(block) for block in ("format", "rules", "bad_example")},
                arguments="object",
            ),
            allows=OBJECT_ARGUMENTS,
        ),
        LabVariant("nonce-tag", nonce=True),
        LabVariant("native", native=True),
    )
}
"""The shipped variants. `spec` is the text of the specification, byte for byte."""


def find_variants(texts: Iterable[str]) -> dict[str, LabVariant]:
    """The variants of shipped names or files, by name. Raises UsageError, also for different ones of the same name."""
    found: dict[str, LabVariant] = {}
    for text in texts:
        variant = find_variant(text)
        if found.setdefault(variant.name, variant) != variant:
            raise UsageError(f"--variant {text}: another variant is also called {variant.name}. Give it a `name`.")
    return found


def find_variant(text: str) -> LabVariant:
    """The variant of a shipped name or of a file. Raises UsageError with one line per fault."""
    if text in SHIPPED:
        return SHIPPED[text]
    path = Path(text)
    if path.suffix not in ENDINGS:
        raise UsageError(f"--variant {text[:80]}: choose {', '.join(SHIPPED)} or a .yaml file.")
    faults: list[Fault] = []
    document = read_document(path, faults)
    if document is not None:
        check_shape(document.data, "variant", document.report)
    raise_faults(faults)
    assert document is not None
    shape = VariantShape.model_validate(document.data)
    base, name = SHIPPED[shape.base], shape.name or path.stem
    if name in SHIPPED:
        raise UsageError(f"{path}: {name} is the name of a shipped variant. Choose another name.")
    if base.native and (shape.blocks or shape.model_fields_set & {"arguments", "nonce"}):
        raise UsageError(f"{path}: the variant native has no injected text. Leave out blocks, arguments and nonce.")
    if "prompt" in shape.model_fields_set and shape.model_fields_set & {"base", "blocks", "arguments", "nonce"}:
        raise UsageError(f"{path}: prompt replaces the whole text. Leave out base, blocks, arguments and nonce.")
    blocks = {block: _text(given, path).rstrip("\n") for block, given in shape.blocks.items()}
    arguments = shape.arguments if "arguments" in shape.model_fields_set else base.wording.arguments
    try:
        wording = Variant(name, {**base.wording.blocks, **blocks}, arguments)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    nonce = shape.nonce if "nonce" in shape.model_fields_set else base.nonce
    return LabVariant(
        name,
        wording,
        native=base.native,
        nonce=nonce,
        allows=OBJECT_ARGUMENTS if arguments == "object" else frozenset(),
        changes=_changes(shape, path),
        format=_format(shape, path),
    )


def _format(shape: VariantShape, path: Path) -> PromptFormat | None:
    if "prompt" not in shape.model_fields_set:
        return None
    given = shape.prompt
    return PromptFormat(_text(given.text, path).rstrip("\n"), given.functions, given.calls, given.tagged)


def _changes(shape: VariantShape, path: Path) -> Changes:
    given = shape.instructions
    hows: tuple[How, ...] = ("replace", "prepend", "append")
    instructions: tuple[tuple[How, str], ...]
    if "instructions" not in shape.model_fields_set:
        instructions = ()
    elif isinstance(given, str):
        instructions = (("replace", given),)
    else:
        texts = [(how, getattr(given, how)) for how in hows]
        instructions = tuple((how, _text(text, path).rstrip("\n")) for how, text in texts if text is not None)
    return Changes(instructions, tool_changes(shape.tools), shape.schemas, shape.effort, shape.temperature)


def tool_changes(shapes: Mapping[str, ToolChangeShape]) -> dict[str, ToolChange]:
    return {name: ToolChange(shape.name, shape.description) for name, shape in shapes.items()}


def _text(given: str | TextFile, path: Path) -> str:
    return given if isinstance(given, str) else read_text(given.file, path, str(path))


def read_text(name: str, beside: Path, origin: str) -> str:
    """The text of a file beside another one. Raises UsageError, which names the `origin` of the name."""
    try:
        return (beside.parent / name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{origin}: {name}: {why}") from None
