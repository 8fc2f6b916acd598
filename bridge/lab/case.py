"""Cases (what a model is asked, and what a right answer does) and samples (what it answered). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bridge.core.collect import TextOutput, collect
from bridge.core.events import TurnEvent
from bridge.core.items import FunctionTool, Item, ToolChoice
from bridge.core.turn import AUTO
from bridge.errors import BridgeError
from bridge.lab.bfcl import BfclExpect

OTHERS = "*"
"""Among expected arguments: all arguments that are not named."""

EMPTY = "empty_response"
"""The error that a client gets for an empty answer. Here it is an answer without calls."""


@dataclass(frozen=True, slots=True)
class Called:
    """A call that a model made. `arguments` is the JSON text as it came."""

    name: str
    arguments: str


def is_permanent(error: BridgeError) -> bool:
    """Whether every further request would fail in the same way until the operator fixes the cause.

    The severity alone does not say that: a prompt that is too long is fatal only for its case.
    """
    no_access = error.http_status == 401 or (error.http_status == 403 and error.cause is None)
    return error.severity == "fatal" and (no_access or error.code in ("model_not_found", "insufficient_quota"))


class Verdict(NamedTuple):
    """What a check outside this program says of an answer; `prompt` and `reply` are a judge's."""

    check: Literal["python", "judge"]
    passed: bool
    reason: str = ""
    prompt: str = ""
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How an episode ended."""

    answers: int = 0
    last: int = 0
    """The index of the first text of the last answer."""
    cut: bool = False
    """Whether the limit of answers was reached."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer. `texts` are its messages as the model wrote them, with tags; `calls` are native calls."""

    texts: tuple[str, ...] = ()
    calls: tuple[Called, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    failure: BridgeError | None = None
    """Why there is no answer to score. This is never counted against the model."""
    verdicts: tuple[Verdict, ...] = ()
    ended: Ended | None = None
    """Of an episode. Its texts and calls are those of all answers."""


def sample_of(events: Iterable[TurnEvent], seconds: float = 0.0) -> Sample:
    """The sample of a whole turn whose text was not parsed for tool calls."""
    result = collect(events)
    usage, end = result.usage, result.end
    assert end is not None
    failure = None
    if end.error is not None and end.error.code != EMPTY:
        failure = end.error
    elif end.outcome == "cancelled":
        failure = BridgeError("The turn was interrupted.", code="cancelled")
    return Sample(
        tuple(output.text for output in result.outputs if isinstance(output, TextOutput)),
        tuple(Called(call.name, call.arguments) for call in result.calls),
        usage.input if usage else 0,
        usage.output if usage else 0,
        seconds,
        failure,
    )


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A call that a right answer makes. `arguments` are values or rules by name. Any argument that they do not name is
    wrong, unless `optional` names it or the rule for `*` accepts it."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that may be absent; if present, they must match."""


class Example(NamedTuple):
    """An answer with a person's verdict, to see whether a judge agrees."""

    answer: str
    verdict: Literal["pass", "fail"]


@dataclass(frozen=True, slots=True)
class JudgeExpect:
    """A rubric that a judge model grades answers by."""

    rubric: str
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class Expect:
    calls: tuple[ExpectedCall, ...] = ()
    """The expected calls. If there are none, any call is wrong."""
    order: Literal["any", "exact"] = "any"
    contains: tuple[str, ...] = ()
    """Texts that the visible answer must contain, ignoring case."""
    lacks: tuple[str, ...] = ()
    leak: Literal["forbidden", "allowed"] = "forbidden"
    """Whether tags may appear in the visible text, because the conversation is about them."""
    bfcl: BfclExpect | None = field(default=None, repr=False)
    """What BFCL expects. Then its rules alone decide whether the calls are right."""
    text: Any = field(default=None, repr=False)
    """A rule for the visible text; None for any."""
    check: str | None = field(default=None, repr=False)
    """`module:function` of a check in Python."""
    judge: JudgeExpect | None = field(default=None, repr=False)
    others: Literal["forbidden", "allowed"] = field(default="forbidden", repr=False)
    """Whether calls besides the expected ones are right, too."""
    last_call: str | None = field(default=None, repr=False)
    """A function after whose call nothing may be called."""

    @property
    def names(self) -> tuple[str, ...]:
        """The functions that a right answer calls, as far as they are known."""
        return tuple(call.name for call in (self.calls if self.bfcl is None else self.bfcl.calls))

    @property
    def more(self) -> tuple[object, ...]:
        """The members that the repr leaves out, if they are set, so that cases without them keep their fingerprints."""
        others = None if self.others == "forbidden" else self.others
        given = (self.bfcl, self.text, self.check, self.judge, others, self.last_call)
        return tuple(each for each in given if each is not None)


@dataclass(frozen=True, slots=True)
class Reaction:
    """What a simulated tool does when it is called: it returns a result or an error, or asks a function in Python."""

    when: Mapping[str, Any] = field(default_factory=dict)
    """Values or rules by argument; the reaction is only for calls that match."""
    result: Any = None
    error: str | None = None
    python: str | None = None
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Loop:
    """What follows the first answer of a case."""

    tools: Mapping[str, tuple[Reaction, ...]] = field(default_factory=dict)
    then: tuple[str, ...] = ()
    """What the user says when the model is done."""
    max_steps: int = 10


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `items` is the whole conversation before the answer that is scored."""

    id: str
    category: str
    items: tuple[Item, ...]
    expect: Expect
    tools: tuple[FunctionTool, ...] = ()
    instructions: str | None = None
    tool_choice: ToolChoice = AUTO
    parallel: bool = True
    tags: tuple[str, ...] = ()
    notes: str = ""
    loop: Loop | None = None
    file: Path | None = field(default=None, compare=False)
    line: int = field(default=0, compare=False)

    @property
    def expects_calls(self) -> bool:
        return self.expect.bfcl.expects_calls if self.expect.bfcl is not None else bool(self.expect.calls)

    @property
    def fingerprint(self) -> str:
        """Changes with everything in a case that matters to its results."""
        parts = (self.items, self.expect, self.tools, self.instructions, self.tool_choice, self.parallel)
        loop = () if self.loop is None else (self.loop,)
        return digest(repr((*parts, *self.expect.more, *loop)))


def digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def some(names: Sequence[str], most: int = 8) -> str:
    """The first of many names, for a sentence."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
