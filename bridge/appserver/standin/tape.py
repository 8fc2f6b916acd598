"""What a recorded child was asked and what it said, as data. Pure.

A tape is one thread (or conversation). It is cut into scenes: each begins with a call that the answer depends on, and
holds everything that the child said until the next one. `bridge.protolog.child_side` makes tapes from a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Dialect = Literal["current", "legacy"]
Message = dict[str, Any]

BEGINS: dict[str, Dialect] = {
    "thread/start": "current",
    "thread/resume": "current",
    "thread/fork": "current",
    "newConversation": "legacy",
    "resumeConversation": "legacy",
}
"""Calls that make a thread, and whose they are."""

PARTS = frozenset({"thread/inject_items"})
"""Calls that add to what a turn is asked."""

PROMPTS = frozenset(
    {"turn/start", "turn/steer", "review/start", "thread/compact/start", "sendUserTurn", "sendUserMessage"}
)
"""Calls that let the model speak."""

STOPS = frozenset({"turn/interrupt", "interruptConversation"})

ENDS = frozenset({"turn/completed", "codex/event/task_complete", "codex/event/turn_aborted"})
"""Notifications that end a turn."""

StepKind = Literal["notification", "reply", "ask", "answer", "call", "exit"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened in a scene.

    `notification`, `reply` and `ask` are said by the child (an ask is its own request); `answer` is the client's reply
    to an ask, `call` another call of the client's, and with `exit` the child was gone.
    """

    at: float
    """Seconds after the call that begins the scene."""
    kind: StepKind
    message: Message = field(default_factory=dict)
    method: str = ""
    """Of a call."""
    call: int = 0
    """Which call a reply belongs to: 0 is the scene's own, others count from 1. A call has its own number here."""
    code: int = 0
    """What the child ended with; negative for a signal."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A call and what followed it. `label` and `when` say to a person where it is in the log."""

    method: str
    params: Message
    steps: tuple[Step, ...]
    label: str = ""
    when: str = ""
    order: int = 0
    """Where in the log its call stands."""

    @property
    def refused(self) -> bool:
        """Whether the call was answered with an error."""
        return any(step.kind == "reply" and not step.call and is_refusal(step.message) for step in self.steps)

    def __str__(self) -> str:
        return f"{self.label}, {self.when}" if self.when else self.label


@dataclass(frozen=True, slots=True)
class Tape:
    """A thread's scenes in order. `id` is None where the log has been cut before it was told."""

    id: str | None
    dialect: Dialect
    scenes: tuple[Scene, ...]

    @property
    def headless(self) -> bool:
        """Whether the call that made the thread is not in the log."""
        return self.scenes[0].method not in BEGINS

    def replies_to(self, method: str) -> list[Message]:
        """How calls of the client's that no scene begins with were answered."""
        found = []
        for scene in self.scenes:
            numbers = {step.call for step in scene.steps if step.kind == "call" and step.method == method}
            found += [step.message for step in scene.steps if step.kind == "reply" and step.call in numbers]
        return found


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call that is about no thread was answered: `reply` has `result` or `error`."""

    params: Message
    reply: Message


@dataclass(frozen=True, slots=True)
class RecordedChild:
    """All that a log says about a child."""

    tapes: tuple[Tape, ...]
    initialize: Message | None = None
    """The reply."""
    greeting: tuple[Step, ...] = ()
    """What was said before any thread."""
    refusal: str | None = None
    """What an unknown method was told; it lists the known ones."""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    """What was called, in order."""


def is_refusal(message: Message) -> bool:
    """Whether a reply is an error."""
    return message.get("error") is not None


def key_in(params: Any) -> str | None:
    """The thread that a message is about, in either dialect; also where it is told whole."""
    if not isinstance(params, dict):
        return None
    thread = params.get("thread")
    named = thread.get("id") if isinstance(thread, dict) else None
    key = params.get("threadId") or params.get("conversationId") or named
    return key if isinstance(key, str) else None
