"""Budgets of tokens or money for a calendar window in UTC: how they are written, and which turns have room. Pure.

What was spent is never kept here: it is the sum of the usage rows of the store, so that usage and budgets cannot
disagree. Only the claims of running turns are kept; a process that dies takes them with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, cast, get_args

TOKENS = "tokens"
PARTS = 10**12
"""Money is counted in whole parts of 10^-12 of the currency, so that sums are exact."""
MAX_BUDGETS = 8
"""For one key, and for all keys."""
EXAMPLES = "5USD/day, 0.50EUR/hour or 2000000tokens/month"

Period = Literal["hour", "day", "week", "month"]

_FORM = re.compile(rf"([0-9]{{1,12}})(\.[0-9]{{1,6}})?[ ]?(tokens|[A-Z]{{3}})/({'|'.join(get_args(Period))})")


@dataclass(frozen=True, slots=True)
class Window:
    """A calendar window."""

    since: str
    """The first day or hour, as usage rows have it: a row belongs to the window if its time is not smaller."""
    ends: int
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Budget:
    """So much in each window."""

    limit: int
    """Tokens, or parts of the currency."""
    unit: str
    """`tokens`, or a currency such as USD."""
    period: Period

    def __str__(self) -> str:
        return f"{plain(self.limit, self.unit)}{self.unit}/{self.period}"

    @property
    def is_money(self) -> bool:
        return self.unit != TOKENS

    def window(self, now: float) -> Window:
        """The window at this time."""
        hour = datetime.fromtimestamp(now, UTC).replace(minute=0, second=0, microsecond=0)
        day = hour.replace(hour=0)
        if self.period == "hour":
            return Window(hour_of(now), _seconds(hour + timedelta(hours=1)))
        if self.period == "day":
            first, after = day, day + timedelta(days=1)
        elif self.period == "week":
            first = day - timedelta(days=day.weekday())
            after = first + timedelta(weeks=1)
        else:
            first = day.replace(day=1)
            after = (first + timedelta(days=31)).replace(day=1)
        return Window(first.date().isoformat(), _seconds(after))


def parse_budget(text: str) -> Budget:
    """A budget as a person writes it. Raises ValueError, which says how to write one."""
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise ValueError(f"{text[:60]!r} is not a budget; write {EXAMPLES}")
    whole, fraction, unit, period = form.groups()
    if unit == TOKENS and fraction is not None:
        raise ValueError(f"{text[:60]!r}: a number of tokens has no fraction")
    limit = int(whole)
    if unit != TOKENS:
        limit = limit * PARTS + int((fraction or ".").removeprefix(".").ljust(12, "0"))
    if limit == 0:
        raise ValueError(f"{text[:60]!r}: a budget must be more than zero; revoke a key that may use nothing")
    return Budget(limit, unit, cast(Period, period))


def check_budgets(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The budgets as they are shown later. Raises ValueError for one that is invalid, or written twice."""
    if len(texts) > MAX_BUDGETS:
        raise ValueError(f"at most {MAX_BUDGETS} budgets are possible")
    budgets = [parse_budget(text) for text in texts]
    if len({(budget.unit, budget.period) for budget in budgets}) != len(budgets):
        raise ValueError("two budgets have the same unit and period; keep one of them")
    return tuple(map(str, budgets))


def hour_of(now: float) -> str:
    """The time of a usage row that has an hour, like `2026-11-16T09`."""
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H}"


def plain(amount: int, unit: str) -> str:
    """An amount as a plain number."""
    if unit == TOKENS:
        return str(amount)
    whole, rest = divmod(amount, PARTS)
    fraction = f"{rest:012}".rstrip("0")
    return f"{whole}.{fraction.ljust(2, '0')}" if fraction else str(whole)


@dataclass(eq=False, frozen=True, slots=True)
class Claim:
    """What a running turn will use, by an estimate."""

    key: str
    """The label of the client's key."""
    tokens: int
    cost: int = 0
    """In parts of the currency."""

    def amount(self, budget: Budget) -> int:
        return self.cost if budget.is_money else self.tokens


@dataclass(frozen=True, slots=True)
class Standing:
    """A budget and what is left of it."""

    budget: Budget
    key: str | None
    """The label of the key that has it; None for the budget of all keys."""
    spent: int
    reserved: int
    """What running turns are expected to use."""
    ends: int
    """When the window ends, in Unix seconds."""

    @property
    def left(self) -> int:
        return max(0, self.budget.limit - self.spent - self.reserved)


class Claims:
    """The claims of the running turns of one process."""

    def __init__(self) -> None:
        self._held: set[Claim] = set()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, claim: Claim) -> None:
        self._held.add(claim)

    def release(self, claim: Claim) -> None:
        """The turn is over. May be called more than once."""
        self._held.discard(claim)

    def reserved(self, budget: Budget, key: str | None) -> int:
        """What running turns hold of a budget of this key, or of all keys."""
        return sum(claim.amount(budget) for claim in self._held if key is None or claim.key == key)


def first_without_room(standings: Iterable[Standing]) -> Standing | None:
    """The budget that admits no turn, of several the one that lasts longest; None if there is room in all.

    A turn is admitted while anything is left, not while its estimate fits: a budget that is smaller than an estimate
    would otherwise never admit a turn. So the last turn of each slot may exceed the budget.
    """
    return max((each for each in standings if not each.left), key=lambda each: each.ends, default=None)


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())
