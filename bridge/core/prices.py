"""What tokens cost, from the operator's table. No price is built in: they change, and differ by contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bridge.core.events import Usage
from bridge.core.models import best_rule, make_rule

_UNITS = 1_000_000
"""A price is per million tokens. With six decimals of it, one token costs a whole number of these parts."""
_DIGITS = 9
"""Decimals of a cost that is shown. A single cached token of the cheapest model is a few parts in 10^9."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost. `cached` is the part of the input that came from the provider's cache, `reasoning`
    the part of the output that is not shown.
    """

    input: float
    output: float
    cached: float
    reasoning: float


class Prices:
    """Prices by patterns of model names, as in routing: the most specific pattern that matches decides."""

    def __init__(self, prices: Mapping[str, Price] | None = None, currency: str = "USD") -> None:
        self.currency = currency
        self._prices = dict(prices or {})
        self._rules = [make_rule(pattern, pattern) for pattern in self._prices]
        self._found: dict[str, Price | None] = {}

    def __bool__(self) -> bool:
        return bool(self._prices)

    def of(self, model: str) -> Price | None:
        """The price of a model; None if the table has none."""
        if not self._prices:
            return None
        if model not in self._found:
            if len(self._found) >= 1000:  # clients choose the names
                self._found.clear()
            rule = best_rule(model, self._rules)
            self._found[model] = None if rule is None else self._prices[rule.target]
        return self._found[model]

    def cost(self, model: str, usage: Usage) -> int | None:
        """What a turn has cost, in parts of 10^-12 of the currency, so that sums are exact; None if unknown."""
        price = self.of(model)
        if price is None:
            return None
        parts = (
            (usage.input - usage.cached, price.input),
            (usage.cached, price.cached),
            (usage.output - usage.reasoning, price.output),
            (usage.reasoning, price.reasoning),
        )
        return sum(max(0, tokens) * round(each * _UNITS) for tokens, each in parts)


NO_PRICES = Prices()


def amount(cost: int | None) -> float | None:
    """A cost as a number of the currency."""
    return None if cost is None else round(cost / _UNITS**2, _DIGITS)
