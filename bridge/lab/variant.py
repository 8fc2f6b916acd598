"""Variants: the wordings of the injected text that are compared. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from bridge.lab.case import Case
from bridge.tools.instructions import SPEC, Variant, build_instructions
from bridge.tools.tags import TAG


class Tags(NamedTuple):
    """The tags of a call: `<name>` and `</name>`."""

    name: str

    @property
    def open(self) -> str:
        """Before a call."""
        return f"<{self.name}>"

    @property
    def close(self) -> str:
        """After it."""
        return f"</{self.name}>"


TAGS = Tags(TAG)
OBJECT_ARGUMENTS = frozenset({"arguments_coerced"})
"""The repairs that are none where arguments are asked for as an object."""


@dataclass(frozen=True, slots=True)
class LabVariant:
    """How tools are offered: in a `wording`, or natively.

    With `nonce` each case has tags of its own, which nothing in its texts can forge. `allows` are repairs that are none
    here, because the wording asks for that form.
    """

    name: str
    wording: Variant = SPEC
    native: bool = False
    nonce: bool = False
    allows: frozenset[str] = frozenset()

    def tags_for(self, case: Case) -> Tags:
        """The tags that calls have in this case, the same every time."""
        if not self.nonce:
            return TAGS
        return Tags(f"tool_call_{blake2b(case.id.encode(), digest_size=3).hexdigest()}")

    def text_for(self, case: Case) -> str:
        """The text that is injected; empty when there is none."""
        if self.native or not case.tools:
            return ""
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

_OBJECT_RULES = r"""Always emit <tool_call> blocks exactly as shown; the client executes them.
Do NOT call internal tools directly (shell, apply_patch, web_search, view_image); only emit <tool_call>.
Read-only sandbox or approval restrictions do NOT prevent emitting <tool_call> output.
Use EXACT parameter names from the schema; do NOT invent or rename keys.
Do not add any extra characters before or after the JSON (no trailing ">", no code fences).
Use exactly one opening <tool_call> and one closing </tool_call> tag.
Output must be valid JSON. Do not add extra braces or trailing characters.
Do NOT wrap the JSON object in an array (no leading "[" or trailing "]").
$bad_example
Never repeat the closing tag.
Example (exact): <tool_call>{"name":"webSearch","arguments":{"query":"example","chatHistory":[]}}</tool_call>
The "arguments" field must be a JSON object.
If a tool has no parameters, use arguments {}.
If no tool is needed, respond with plain text."""

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
                {
                    "format": """\
Format: <tool_call>{"name":"TOOL_NAME","arguments":{...}}</tool_call>
Inside <tool_call>...</tool_call>, output ONLY a JSON object with keys "name" and "arguments".""",
                    "rules": _OBJECT_RULES,
                    "bad_example": 'Bad: <tool_call>[{"name":"tool","arguments":{...}}]</tool_call>',
                },
                arguments="object",
            ),
            allows=OBJECT_ARGUMENTS,
        ),
        LabVariant("nonce-tag", nonce=True),
        LabVariant("native", native=True),
    )
}
"""The variants that come with the program. `spec` is the document's text, byte for byte."""
