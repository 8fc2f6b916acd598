"""Admits turns only while the budgets of their key, and of all keys, have room.

What was spent is read from the usage rows of the store for each turn, those of other bridges on the same database
included. A key without a budget costs a look-up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from bridge.app.admission import RETRY_AFTER
from bridge.app.keys import Keyring
from bridge.budgets import (
    PARTS,
    Budget,
    Claim,
    Claims,
    Standing,
    first_without_room,
    hour_of,
    parse_budget,
    plain,
)
from bridge.core.events import Usage
from bridge.core.prices import Prices
from bridge.core.turn import Turn, estimate_input
from bridge.errors import BudgetExceeded, Forbidden
from bridge.store.base import Store, UsageRow
from bridge.store.key_store import ClientKey

OUTPUT = 4096
"""How many tokens of output are reserved for a turn without a limit."""
HEADER = b"x-bridge-budget"


class Budgets:
    """The budgets of every key, and those that all keys share."""

    def __init__(
        self,
        keyring: Keyring,
        store: Store,
        prices: Prices,
        shared: Sequence[Budget] = (),
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._keyring = keyring
        self._store = store
        self._prices = prices
        self._of_all: list[tuple[Budget, str | None]] = [(budget, None) for budget in shared]
        self._now = now
        self._claims = Claims()

    @property
    def running(self) -> int:
        """Turns that hold a claim."""
        return len(self._claims)

    def time_of_row(self, label: str) -> str:
        """The time of a usage row that is counted now: the day, with the hour if a budget per hour has to see it."""
        if any(budget.period == "hour" for budget, _ in self._of(label)):
            return hour_of(self._now())
        return hour_of(self._now())[:10]

    async def claim(self, label: str, turn: Turn) -> tuple[Claim | None, list[Standing]]:
        """Reserve an estimate of what a turn will use, if its budgets have room: (the claim, what is left with it).

        Raises BudgetExceeded, Forbidden for a model that money cannot be counted for, and NotReady if the store cannot
        be read.
        """
        budgets = self._of(label)
        if not budgets:
            return None, []
        estimate = Usage(input=estimate_input(turn), output=(turn.max_output_tokens or OUTPUT) * (turn.n or 1))
        cost = self._cost(turn.model, estimate, budgets)
        standings = await self._standings(budgets)
        # No checkpoint from here on: two turns must not both take what is left.
        if (full := first_without_room(standings)) is not None:
            raise self._exceeded(full)
        claim = Claim(label, estimate.total, cost)
        self._claims.hold(claim)
        return claim, [self._standing(each.budget, each.key, each.spent) for each in standings if each.key == label]

    def settle(self, claim: Claim | None) -> None:
        """The turn is over, and its usage is counted."""
        if claim is not None:
            self._claims.release(claim)

    async def visible_to(self, label: str) -> list[Standing]:
        """What is left of the budgets of a key. Only the operator sees what all keys have used."""
        own = self._own(label)
        return await self._standings([*own, *self._of_all] if self._keyring.is_operator(label) else own)

    async def everything(self) -> list[Standing]:
        """What is left of all budgets."""
        own = [each for label in self._keyring.labels for each in self._own(label)]
        return await self._standings([*own, *self._of_all])

    def _of(self, label: str) -> list[tuple[Budget, str | None]]:
        """The budgets that apply to a key."""
        return [*self._own(label), *self._of_all]

    def _own(self, label: str) -> list[tuple[Budget, str | None]]:
        return [(budget, label) for budget in budgets_of(self._keyring.get(label))]

    async def _standings(self, budgets: Sequence[tuple[Budget, str | None]]) -> list[Standing]:
        if not budgets:
            return []
        now = self._now()
        rows = await self._store.usage(since=min(budget.window(now).since for budget, _ in budgets), hours=True)
        return [
            self._standing(budget, key, spent(budget, key, rows, self._prices, self._now())) for budget, key in budgets
        ]

    def _standing(self, budget: Budget, key: str | None, spent: int) -> Standing:
        return Standing(budget, key, spent, self._claims.reserved(budget, key), budget.window(self._now()).ends)

    def _cost(self, model: str, usage: Usage, budgets: Sequence[tuple[Budget, str | None]]) -> int:
        """What a turn is expected to cost; 0 if no budget counts money."""
        money = next((budget for budget, _ in budgets if budget.is_money), None)
        if money is None:
            return 0
        if any(budget.is_money and budget.unit != self._prices.currency for budget, _ in budgets):
            raise Forbidden(
                f"A budget of this key is not in {self._prices.currency}, the currency of the prices. The operator has "
                "to set [prices] currency, or a budget in that currency.",
                code="budget_currency_mismatch",
            )
        cost = self._prices.cost(model, usage)
        if cost is None:
            raise Forbidden(
                f"The model {model!r} has no price, so that a budget in {money.unit} cannot cover it. Use a model that "
                "has one; the operator sets it in [prices.models] (0 for one that costs nothing).",
                code="model_without_price",
            )
        return cost

    def _exceeded(self, full: Standing) -> BudgetExceeded:
        owner = "all keys together" if full.key is None else "this key"
        ends = f"{datetime.fromtimestamp(full.ends, UTC):%Y-%m-%d %H:%M} UTC"
        if full.spent >= full.budget.limit:
            return BudgetExceeded(
                f"Budget exceeded: {owner} may use {full.budget}, and nothing is left. It resets at {ends}.",
                retry_after=max(1.0, full.ends - self._now()),
            )
        left = plain(full.budget.limit - full.spent, full.budget.unit) if full.key is not None else "the rest"
        return BudgetExceeded(
            f"Budget in use: {owner} may use {full.budget}. Running turns hold {left} of it. "
            f"Retry when one has ended; the budget resets at {ends}.",
            severity="transient",
            retry_after=RETRY_AFTER,
        )


def budgets_of(key: ClientKey | None) -> list[Budget]:
    """The budgets of a key."""
    return [parse_budget(text) for text in (key and key.budgets) or ()]


def spent(budget: Budget, key: str | None, rows: Iterable[UsageRow], prices: Prices, now: float) -> int:
    """What these usage rows make of a budget of this key, or of all keys, in the present window."""
    since = budget.window(now).since
    total = 0
    for row in rows:
        if row.day >= since and (key is None or row.key == key):
            usage = Usage(row.input, row.cached, row.output, row.reasoning)
            total += (prices.cost(row.model, usage) or 0) if budget.is_money else usage.total
    return total


def budget_headers(standings: Iterable[Standing], now: float) -> list[tuple[bytes, bytes]]:
    """The header with what is left of each budget; none without budgets."""
    shown = [
        f"{each.budget};left={plain(each.left, each.budget.unit)};reset={max(0, math.ceil(each.ends - now))}"
        for each in standings
    ]
    return [(HEADER, ",".join(shown).encode())] if shown else []


def budget_entry(standing: Standing) -> dict[str, Any]:
    """A budget in GET /v1/usage and `turnbridge keys show --json`."""
    budget = standing.budget

    def number(amount: int) -> float:
        return amount / PARTS if budget.is_money else amount

    return {
        "budget": str(budget),
        "scope": "all" if standing.key is None else "key",
        "unit": budget.unit,
        "limit": number(budget.limit),
        "spent": number(standing.spent),
        "reserved": number(standing.reserved),
        "left": number(standing.left),
        "resets_at": standing.ends,
    }
