"""The cells of the battery: each backend with each client protocol in each case, and those that cannot exist.

`render` makes the table of docs/backends.md of what became of each cell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

BACKENDS = {
    "app_server": "app-server",
    "codex": "codex",
    "responses": "responses",
    "anthropic": "anthropic",
    "openai": "openai",
    "mock": "mock",
}
"""By name in a test's id: the backend's type, as a configuration file spells it."""

PROTOCOLS = {
    "responses_stream": "R",
    "responses": "r",
    "chat_stream": "C",
    "chat": "c",
    "messages_stream": "M",
    "messages": "m",
    "gemini_stream": "G",
    "gemini": "g",
    "websocket": "W",
    "exec": "X",
}
"""By name in a test's id: the letter that stands for it in the table."""

CASES = {
    "text": "text",
    "tools": "tools",
    "parallel_tools": "parallel tools",
    "images": "images",
    "reasoning": "reasoning",
    "reasoning_back": "reasoning given back",
    "switch_provider": "provider switched",
    "bad_request": "error 400",
    "rate_limit": "error 429",
    "incomplete": "incomplete",
    "cancel": "cancel",
    "usage": "usage",
}
"""By name in a test's id: the head of its column."""


class Cell(NamedTuple):
    """One test."""

    backend: str
    protocol: str
    case: str

    @property
    def id(self) -> str:
        """As pytest names it."""
        return "-".join(self)


@dataclass(frozen=True)
class Rule:
    """Something about all cells of these backends, protocols and cases; about all of a kind where none is named."""

    reason: str
    backends: Collection[str] = tuple(BACKENDS)
    protocols: Collection[str] = tuple(PROTOCOLS)
    cases: Collection[str] = tuple(CASES)

    def covers(self, cell: Cell) -> bool:
        return cell.backend in self.backends and cell.protocol in self.protocols and cell.case in self.cases


GAPS = (
    Rule(
        "The mock models give one text or one call: they see no images, do not think, refuse nothing, and finish "
        "before a client could disconnect.",
        backends=["mock"],
        cases=set(CASES) - {"text", "tools", "usage"},
    ),
    Rule(
        "Chat completions have no encrypted thoughts. (Gemini's calls are signed; their signatures are given back.)",
        backends=["openai"],
        cases=["reasoning_back"],
    ),
    Rule(
        "A chat client sees thoughts, but its messages have no place for the encrypted ones; the next turn "
        "continues without them.",
        protocols=["chat", "chat_stream"],
        cases=["reasoning_back"],
    ),
)
"""What cannot exist, and why. The first rule that covers a cell tells."""

FAULTS: tuple[Rule, ...] = ()
"""What should work and does not yet: those tests are expected to fail, and must."""


def all_cells() -> Iterator[Cell]:
    """Every combination."""
    return (Cell(*names) for names in product(BACKENDS, PROTOCOLS, CASES))


def gap_of(cell: Cell) -> str | None:
    """Why a cell cannot exist."""
    return _reason(GAPS, cell)


def fault_of(cell: Cell) -> str | None:
    """Why a cell is expected to fail."""
    return _reason(FAULTS, cell)


def battery() -> list[Cell]:
    """The cells that are tests."""
    return [cell for cell in all_cells() if gap_of(cell) is None]


def declared() -> dict[Cell, str]:
    """What the battery says of itself: each of its cells, `passed` or `failed`."""
    return {cell: "passed" if fault_of(cell) is None else "failed" for cell in battery()}


def render(outcomes: Mapping[Cell, str]) -> str:
    """The table. A field has the letters of the protocols that passed, and the number of a note about the others."""
    notes: list[str] = []
    rows = [["backend", *CASES.values()], ["---"] * (len(CASES) + 1)]
    for backend, name in BACKENDS.items():
        fields = [_field([Cell(backend, protocol, case) for protocol in PROTOCOLS], outcomes, notes) for case in CASES]
        rows.append([f"`{name}`", *fields])
    table = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*table, "", *(f"{number}. {note}" for number, note in enumerate(notes, 1))])


def _field(cells: list[Cell], outcomes: Mapping[Cell, str], notes: list[str]) -> str:
    passed = "".join(PROTOCOLS[cell.protocol] for cell in cells if outcomes.get(cell) == "passed")
    said = dict.fromkeys(_note(cell) for cell in cells if outcomes.get(cell) != "passed")
    notes += [note for note in said if note not in notes]
    marks = ",".join(str(notes.index(note) + 1) for note in said)
    return (passed or "–") + (f" <sup>{marks}</sup>" if marks else "")


def _note(cell: Cell) -> str:
    gap, fault = gap_of(cell), fault_of(cell)
    return gap or (f"Does not work yet: {fault}" if fault else "Failed in the last run of the battery.")


def _reason(rules: tuple[Rule, ...], cell: Cell) -> str | None:
    return next((rule.reason for rule in rules if rule.covers(cell)), None)
