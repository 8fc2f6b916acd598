"""What a client may ask for, and what has to come of it: the model that the bridge is held to.

A plan is the steps that the child performs for one request, and the outcome. Every text holds the request's own token,
so that a word of another turn would be seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Step = dict[str, Any]

CRASHED = "backend_crashed"
GARBAGE = ("not json", '{"half":', "\x1b[31mred\x1b[0m", '{"id":true,"result":{}}', "[1,2]", '{"method":5}')


@dataclass(frozen=True)
class Plan:
    """The child's part of one request.

    `outcome` is `completed`, or the code of the error; `streamed` is what may come instead for who has seen part of the
    answer by then. `text` is the complete text of the answer.
    """

    name: str
    steps: list[Step]
    outcome: str = "completed"
    text: str | None = None
    streamed: str | None = None
    calls: list[str] = field(default_factory=list)

    def allowed(self, *, stream: bool) -> set[str]:
        """How it may end for a client."""
        return {self.outcome, self.streamed} if stream and self.streamed else {self.outcome}


def _pieces(token: str, dice: random.Random, count: int) -> list[str]:
    return [f"{token}.{number} " for number in range(count)] + [
        dice.choice(["ä", "日本", "🙂", "\u2028", '"\\', "end"])
    ]


def say(token: str, dice: random.Random) -> Plan:
    """An answer in pieces, some of them after a pause."""
    pieces = _pieces(token, dice, dice.choice((1, 3, 20, 100)))
    at = dice.randrange(len(pieces))
    steps: list[Step] = [{"deltas": pieces[:at]}, {"sleep": dice.choice((0, 0.01, 0.2))}, {"deltas": pieces[at:]}]
    return Plan("say", [*steps, {"usage": {"input": 3, "output": len(pieces)}}], text="".join(pieces))


def think(token: str, dice: random.Random) -> Plan:
    """Reasoning before the answer, a part of which comes in the completed message only."""
    steps: list[Step] = [
        {"reasoning": [f"hm {token}", "so"], "raw_reasoning": ["raw"]},
        {"deltas": [f"{token} a"]},
        {"no_delta": "b"},
        {"usage": {"input": 1, "output": 2, "reasoning": 1}},
    ]
    return Plan("think", steps, text=f"{token} ab")


def call(token: str, dice: random.Random) -> Plan:
    """A tool call in the text."""
    block = f'<tool_call>{{"name":"look","arguments":"{{\\"q\\":\\"{token}\\"}}"}}</tool_call>'
    steps: list[Step] = [{"deltas": [f"I look {token}: "]}, {"text": block, "chunk": dice.choice((1, 5, 500))}]
    return Plan("call", steps, text=f"I look {token}: ", calls=[f'{{"q":"{token}"}}'])


def fail(token: str, dice: random.Random) -> Plan:
    """The provider refuses before or after the first word."""
    said: list[Step] = [{"deltas": [f"{token} "]}] if dice.random() < 0.5 else []
    info, code = dice.choice((("contextWindowExceeded", "context_length_exceeded"), ("other", "upstream_error")))
    return Plan("fail", [*said, {"error": {"message": "It went wrong.", "info": info}}], code)


def retry(token: str, dice: random.Random) -> Plan:
    """The provider's stream breaks and starts again; text that was sent cannot be withdrawn."""
    steps: list[Step] = [{"deltas": [f"{token} void"]}, {"sleep": 0.05}, {"retry": "again"}, {"deltas": [token]}]
    return Plan("retry", steps, text=token, streamed="stream_interrupted")


def nothing(token: str, dice: random.Random) -> Plan:
    """A turn without an answer is an error."""
    return Plan("nothing", [], "empty_response")


def noise(token: str, dice: random.Random) -> Plan:
    """Garbage, stderr and questions of the child between the words change nothing."""
    steps: list[Step] = []
    for number in range(6):
        steps += [{"deltas": [f"{token}.{number} "]}, {"garbage": dice.choice(GARBAGE)}]
    steps += [{"stderr": True}, {"request": {"method": "item/commandExecution/requestApproval", "params": {}}}]
    return Plan("noise", steps, text="".join(f"{token}.{number} " for number in range(6)))


def flood(token: str, dice: random.Random) -> Plan:
    """More than a socket takes at once."""
    count = dice.choice((2000, 6000))
    return Plan("flood", [{"deltas": [token]}, {"flood": count}], text=token + "flood " * count)


def hang(token: str, dice: random.Random) -> Plan:
    """Silence, before or after the first word, until a limit ends it."""
    said: list[Step] = [{"deltas": [f"{token} "]}] if dice.random() < 0.5 else []
    return Plan("hang", [*said, {"hang": True}], "backend_timeout")


def long(token: str, dice: random.Random) -> Plan:
    """An answer that takes a few seconds: for clients that leave in the middle."""
    steps: list[Step] = []
    for number in range(40):
        steps += [{"deltas": [f"{token}.{number} "]}, {"sleep": 0.1}]
    return Plan("long", steps, text="".join(f"{token}.{number} " for number in range(40)))


def crash(token: str, dice: random.Random) -> Plan:
    """The child ends, or loses its voice, in the middle: its other turns fail with it."""
    end: Step = dice.choice(({"exit": 3}, {"signal": 9}, {"signal": 11}, {"close_stdout": True}))
    said: list[Step] = [{"deltas": [f"{token} "]}, {"sleep": 0.05}] if dice.random() < 0.7 else []
    return Plan("crash", [*said, end], CRASHED)


PLANS: dict[Callable[[str, random.Random], Plan], int] = {
    say: 30, think: 8, call: 10, fail: 8, retry: 6, nothing: 4, noise: 8, flood: 4,
}  # fmt: skip
"""What clients usually ask for, and how often."""


def any_plan(token: str, dice: random.Random) -> Plan:
    """One of them."""
    make = dice.choices(list(PLANS), list(PLANS.values()))[0]
    return make(token, dice)
