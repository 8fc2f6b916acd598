"""Budgets: any interleaving of turns, with crashes at any point, against sums over a plain list of what was settled."""

from __future__ import annotations

import tempfile
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store.stores import Clock

from bridge.app.budgets import Budgets
from bridge.app.keys import Keyring
from bridge.budgets import PARTS, Budget, Claim, Period, parse_budget, plain
from bridge.core.items import Message, Text
from bridge.core.prices import Price, Prices
from bridge.core.turn import Turn
from bridge.errors import BudgetExceeded
from bridge.store.base import UsageRow
from bridge.store.key_store import KeyFile
from bridge.store.sqlite import SqliteStore

OPERATOR = "the-operator-has-no-budget-of-its-own"
SLOTS = 3
MOST = 400
"""The tokens of the largest turn."""
PRICE = 1000.0
"""For a million tokens: a token costs 0.001."""
OWN = ("300tokens/hour", "0.5USD/day", "900tokens/week")
SHARED = ("1.2USD/week", "2000tokens/month")
sizes = st.sampled_from([1, 50, 200, MOST])


@dataclass(frozen=True)
class Settled:
    at: float
    key: str
    tokens: int


def began(period: Period, now: float) -> float:
    """When a window began, computed from the calendar."""
    moment = datetime.fromtimestamp(now, UTC)
    day = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    if period == "hour":
        return day.timestamp() + moment.hour * 3600
    if period == "day":
        return day.timestamp()
    if period == "week":
        return day.timestamp() - moment.weekday() * 86_400
    return day.timestamp() - (moment.day - 1) * 86_400


class BudgetMachine(RuleBasedStateMachine):
    """One store, and bridges over it of which each may be killed."""

    @initialize()
    def open(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        keys = KeyFile(Path(self.directory.name) / "keys.json")
        self.label = keys.add("ci", now=datetime.now(UTC), budgets=OWN)[1].label
        self.keyring = Keyring([OPERATOR], keys)
        assert self.keyring.operator is not None
        self.labels = (self.label, self.keyring.operator)
        self.clock = Clock()
        self.store = SqliteStore(None, now=self.clock, ttl=10**9, max_bytes=10**9)
        self.settled: list[Settled] = []
        self.start_bridge()

    def start_bridge(self) -> None:
        prices = Prices({"*": Price(PRICE, PRICE, PRICE, PRICE)})
        shared = [parse_budget(text) for text in SHARED]
        self.budgets = Budgets(self.keyring, self.store, prices, shared, now=self.clock)
        self.running: list[tuple[str, Claim]] = []

    def spent(self, budget: Budget, key: str | None) -> int:
        since = began(budget.period, self.clock())
        tokens = sum(each.tokens for each in self.settled if each.at >= since and key in (None, each.key))
        return tokens * PARTS // 1000 if budget.is_money else tokens

    def applying(self, label: str) -> list[tuple[Budget, str | None]]:
        own = [(parse_budget(text), label) for text in OWN] if label == self.label else []
        return [*own, *((parse_budget(text), None) for text in SHARED)]

    def full(self, label: str) -> list[Budget]:
        """The budgets without room."""
        return [
            budget
            for budget, key in self.applying(label)
            if self.spent(budget, key)
            + sum(claim.amount(budget) for each, claim in self.running if key in (None, each))
            >= budget.limit
        ]

    @rule(which=st.integers(0, 1), outputs=st.lists(sizes, min_size=1, max_size=SLOTS))
    def begin(self, which: int, outputs: list[int]) -> None:
        """Some turns of a key arrive at once."""
        label = self.labels[which]
        free = SLOTS - sum(key == label for key, _ in self.running)
        full = self.full(label)
        admitted: list[Claim] = []
        refused: list[BudgetExceeded] = []

        async def one(output: int) -> None:
            turn = Turn("m", "m", (Message("user", (Text("hello"),)),), max_output_tokens=output)
            try:
                claim, _ = await self.budgets.claim(label, turn)
            except BudgetExceeded as error:
                refused.append(error)
            else:
                assert claim is not None
                admitted.append(claim)

        async def all_at_once() -> None:
            async with trio.open_nursery() as nursery:
                for output in outputs[:free]:
                    nursery.start_soon(one, output)

        trio.run(all_at_once)
        if full:
            assert not admitted
        elif outputs[:free]:
            assert admitted
        assert all(error.retry_after is not None and error.retry_after >= 1 for error in refused)
        for claim in admitted:
            assert not self.full(label), "turns that arrived together took what was left twice"
            self.running.append((label, claim))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=sizes)
    def end(self, data: st.DataObject, tokens: int) -> None:
        """A turn ends, by itself or interrupted: what is known of its usage is counted."""
        label, claim = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        input = tokens // 2
        self.store.count(
            UsageRow(self.budgets.time_of_row(label), label, "m", 1, 0, input, input // 2, tokens - input, 0)
        )
        self.budgets.settle(claim)
        self.settled.append(Settled(self.clock(), label, tokens))

    @rule()
    def kill(self) -> None:
        """The bridge dies, and what it ran with it. Another one starts."""
        self.start_bridge()

    @rule(minutes=st.sampled_from([1, 20, 60, 60 * 20, 60 * 24 * 9]))
    def wait(self, minutes: int) -> None:
        self.clock.advance(60 * minutes)

    @invariant()
    def nothing_exceeds_its_budget_by_more_than_a_turn_for_each_slot(self) -> None:
        for label in self.labels:
            for budget, key in self.applying(label):
                slots = SLOTS * (1 if key is not None else len(self.labels))
                most = slots * MOST * (PARTS // 1000 if budget.is_money else 1)
                assert self.spent(budget, key) <= budget.limit + most

    @invariant()
    def the_books_balance(self) -> None:
        """What the budgets say is spent is the sum of what was settled, and so is the usage."""
        for standing in trio.run(self.budgets.everything):
            assert standing.spent == self.spent(standing.budget, standing.key)
            held = sum(claim.amount(standing.budget) for key, claim in self.running if standing.key in (None, key))
            assert standing.reserved == held
            assert standing.ends > self.clock()

        async def usage() -> list[UsageRow]:
            return await self.store.usage(since="")

        rows = trio.run(usage)
        assert sum(row.input + row.output for row in rows) == sum(each.tokens for each in self.settled)
        assert all(len(row.day) == 10 for row in rows)
        assert self.budgets.running == len(self.running)

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.directory.cleanup()


TestBudgets = BudgetMachine.TestCase


moments = st.datetimes(datetime(2024, 1, 1), datetime(2032, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC))


@given(moments, st.sampled_from(["hour", "day", "week", "month"]))
def test_windows_follow_the_calendar(moment: datetime, period: Period) -> None:
    """The window of any moment holds it, and the next one begins where it ends."""
    budget, now = Budget(1, "tokens", period), moment.timestamp()
    window = budget.window(now)
    start = began(period, now)
    assert window.since == datetime.fromtimestamp(start, UTC).isoformat()[: 13 if period == "hour" else 10]
    length = {
        "hour": timedelta(hours=1),
        "day": timedelta(days=1),
        "week": timedelta(weeks=1),
        "month": timedelta(days=monthrange(moment.year, moment.month)[1]),
    }[period]
    assert window.ends == start + length.total_seconds()
    assert budget.window(window.ends - 0.001) == window
    assert budget.window(window.ends).since > window.since


@given(st.integers(1, 10**17), st.sampled_from(["tokens", "USD", "EUR"]), st.sampled_from(["hour", "month"]))
def test_a_budget_is_read_as_it_is_shown(amount: int, unit: str, period: Period) -> None:
    limit = amount if unit != "tokens" else min(amount, 10**11)
    limit = limit if unit == "tokens" else limit * 10**6
    assert parse_budget(str(Budget(limit, unit, period))) == Budget(limit, unit, period)
    assert "e" not in plain(limit, "USD")
