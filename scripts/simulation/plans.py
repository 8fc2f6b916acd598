"""What a history is made of: settings of the bridge, clients, their requests, and what children do with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from child import Habits
from choices import Choices

Step = dict[str, Any]
Manner = Literal["stays", "leaves", "stalls", "cancels"]
PROTOCOLS = ("chat", "responses", "messages", "gemini", "cap")
GARBAGE = ("not json", '{"half":', '{"id":true,"result":{}}', "[1,2]", '{"method":5}', '{"id":77,"result":1}')
APPROVAL = {"method": "item/commandExecution/requestApproval", "params": {"threadId": "none"}}

FIRST_EVENT, IDLE, RPC, QUEUE, GRACE = 6.0, 8.0, 4.0, 5.0, 4.0


@dataclass(frozen=True)
class Ask:
    """One request, and what the child that gets it does."""

    mark: str
    protocol: str
    stream: bool
    manner: Manner
    after: float
    """Seconds until the client leaves, stalls or cancels."""
    stall: float
    cuts: int
    """The number of pieces in which the request is sent."""
    text: str
    steps: list[Step]
    fate: str
    continues: bool
    """It continues the conversation of the client's last request, where that was completed in the same protocol."""


@dataclass(frozen=True)
class ClientPlan:
    """A client: its requests on one connection, one after the other."""

    number: int
    at: float
    asks: tuple[Ask, ...]
    key: int
    """Which of the keys it uses."""


@dataclass(frozen=True)
class KeyPlan:
    """A stored key, and when it ends."""

    expires: float | None = None
    revoked: float | None = None
    max_turns: int | None = None

    @property
    def ends(self) -> float | None:
        """When it is no longer valid."""
        return self.expires if self.revoked is None else self.revoked


@dataclass(frozen=True)
class Plan:
    """A whole history."""

    clients: tuple[ClientPlan, ...]
    keys: tuple[KeyPlan, ...]
    dialect: Literal["current", "legacy"]
    settings: dict[str, Any]
    stop_at: float | None
    disk_full: tuple[float, float] | None
    logs: bool
    small_buffers: bool
    marks: dict[str, Ask] = field(default_factory=dict)


def make_plan(choices: Choices) -> Plan:
    """The plan of a history."""
    keys = tuple(_key(choices, number) for number in range(choices.choose("keys", 0, 0, 0, 1, 2)))
    clients: list[ClientPlan] = []
    asks: list[Ask] = []
    for number in range(choices.choose("clients", 1, 2, 3, 3, 4, 4, 5, 6)):
        count = choices.choose(f"client{number}.asks", 1, 1, 2, 3)
        made = tuple(_ask(choices, f"q{number}{n};") for n in range(count))
        asks += made
        at = choices.choose(f"client{number}.at", 0.0, 0.0, 0.01, 0.5, 2.0, 7.0)
        clients.append(ClientPlan(number, at, made, choices.choose(f"client{number}.key", 0, *range(len(keys) + 1))))
    settings = {
        "max_turns": choices.choose("max_turns", 256, 256, 256, 1, 2),
        "max_queue": choices.choose("max_queue", 64, 64, 2),
        "kept_threads": choices.choose("kept_threads", 0, 0, 4),
        "warm_threads": choices.choose("warm_threads", 0, 0, 1),
        "status_hold": choices.choose("status_hold", 2.0, 0.0),
    }
    full_at = choices.rarely("disk.full", 8, None, 0.5, 2.0, 4.0)
    return Plan(
        tuple(clients),
        keys,
        choices.choose("dialect", "current", "current", "legacy"),
        settings,
        choices.rarely("stop", 6, None, 0.3, 1.0, 3.0, 6.0),
        None if full_at is None else (full_at, full_at + choices.choose("disk.full.for", 1.0, 10.0)),
        choices.choose("log", False, False, False, True) or full_at is not None,
        choices.choose("buffers", False, False, True),
        {ask.mark: ask for ask in asks},
    )


def _key(choices: Choices, number: int) -> KeyPlan:
    name = f"key{number}"
    ends = choices.choose(f"{name}.ends", None, None, 1.0, 3.0, 9.0)
    is_revoked = ends is not None and choices.choose(f"{name}.revoked", False, True)
    return KeyPlan(
        None if is_revoked else ends,
        ends if is_revoked else None,
        choices.choose(f"{name}.max_turns", None, None, 1),
    )


def _ask(choices: Choices, mark: str) -> Ask:
    name = mark[:-1]
    filler = "x" * choices.rarely(f"{name}.size", 5, 0, 300, 3000)
    pieces = [f"{mark}{n} {filler}" for n in range(choices.choose(f"{name}.pieces", 1, 2, 3, 6, 12, 30))]
    steps: list[Step] = []
    for number, piece in enumerate(pieces):
        # Of the last piece nothing may be streamed: it comes with the whole message.
        is_streamed = number < len(pieces) - 1 or not choices.rarely(f"{name}.whole", 5, False, True)
        steps.append({"deltas": [piece]} if is_streamed else {"no_delta": piece})
        pause = choices.rarely(f"{name}.pause.{number}", 5, 0.0, 0.001, 0.1, 1.0, 5.0)
        if pause:
            steps.append({"sleep": pause})
        if number < 3:
            noise = choices.rarely(f"{name}.noise.{number}", 16, None, "garbage", "request", "stderr")
            if noise == "garbage":
                steps.append({"garbage": choices.choose(f"{name}.garbage.{number}", *GARBAGE)})
            elif noise is not None:
                steps.append({"request": APPROVAL} if noise == "request" else {"stderr": "something"})
    fate = choices.rarely(f"{name}.fate", 4, "completes", "error", "interrupted", "hangs", "exits", "late error")
    ends: dict[str, list[Step]] = {
        "completes": [],
        "error": [{"error": {"message": "It went wrong.", "info": "other"}}],
        "late error": [{"sleep": 2.5}, {"error": {"message": "It went wrong.", "info": "other"}}],
        "interrupted": [{"interrupted": True}],
        "hangs": [{"hang": True}],
        "exits": [{"exit": 3}],
    }
    if fate != "completes":
        steps = steps[: choices.choose(f"{name}.fate.at", len(steps), 0, 1, 3)]
    steps += ends[fate]
    steps.append({"usage": {"input": 1, "output": len(pieces)}})
    manner: Manner = choices.choose(f"{name}.manner", "stays", "stays", "stays", "leaves", "stalls", "cancels")
    protocol = choices.choose(f"{name}.protocol", *PROTOCOLS)
    if manner == "cancels" and protocol != "responses":
        manner = "leaves"  # as clients of these protocols cancel
    return Ask(
        mark,
        protocol,
        manner != "cancels" and choices.choose(f"{name}.stream", True, True, False),
        manner,
        choices.choose(f"{name}.after", 0.0, 0.001, 0.02, 0.3, 2.0, 6.0),
        choices.choose(f"{name}.stall", 1.0, 4.0),
        choices.choose(f"{name}.cuts", 1, 1, 1, 2, 4),
        "".join(pieces),
        steps,
        fate,
        choices.choose(f"{name}.continues", False, True),
    )


def habits_of(choices: Choices, number: int) -> Habits:
    """What is wrong with the n-th child of a history."""
    name = f"child{number}"
    return Habits(
        fails_to_start=choices.rarely(f"{name}.start", 16, False, True),
        dies_at=choices.rarely(f"{name}.dies", 5, None, 0.0, 0.01, 0.1, 0.6, 2.0, 4.0),
        silent_at=choices.rarely(f"{name}.silent", 12, None, 0.0, 0.05, 1.0),
        is_deaf=choices.rarely(f"{name}.deaf", 8, False, True),
        keeps_stdout=choices.rarely(f"{name}.keeps_stdout", 10, False, True),
        room=choices.rarely(f"{name}.room", 6, 65536, 64, 700),
    )
