"""What tokens cost."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from bridge.core.events import Usage
from bridge.core.prices import Price, Prices, amount

SMALL = Price(input=1.25, cached=0.125, output=10, reasoning=10)
LARGE = Price(input=5, cached=0.5, output=40, reasoning=30)
PRICES = Prices({"gpt-5*": SMALL, "gpt-5-pro": LARGE, "local/": Price(0, 0, 0, 0)}, "EUR")

tokens = st.integers(0, 10**9)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    read, written = draw(tokens), draw(tokens)
    return Usage(read, draw(st.integers(0, read)), written, draw(st.integers(0, written)))


def test_cached_input_and_reasoning_have_prices_of_their_own() -> None:
    usage = Usage(input=1_000_000, cached=400_000, output=100_000, reasoning=50_000)
    assert amount(PRICES.cost("gpt-5-pro", usage)) == 0.6 * 5 + 0.4 * 0.5 + 0.05 * 40 + 0.05 * 30


def test_the_most_specific_pattern_decides() -> None:
    assert PRICES.of("gpt-5-pro-2026") is LARGE
    assert PRICES.of("GPT-5.5") is SMALL
    assert PRICES.of("claude-sonnet") is None


def test_a_price_of_zero_is_a_price() -> None:
    assert PRICES.cost("local/qwen", Usage(10, 0, 10)) == 0
    assert PRICES.cost("unknown", Usage(10, 0, 10)) is None
    assert amount(None) is None


@given(st.lists(usages(), max_size=20), st.sampled_from(["gpt-5", "gpt-5-pro"]))
def test_the_costs_of_turns_add_up_to_the_cost_of_their_tokens(turns: list[Usage], model: str) -> None:
    """Exactly: usage is stored as sums of tokens, and the log has the cost of each turn."""
    total = sum(turns, Usage())
    assert sum(PRICES.cost(model, usage) or 0 for usage in turns) == PRICES.cost(model, total)


@given(usages(), st.tuples(*[st.integers(0, 10**8)] * 4))
def test_a_cost_is_exact_to_six_decimals_of_a_price(usage: Usage, millionths: tuple[int, int, int, int]) -> None:
    exact = [Fraction(each, 10**6) for each in millionths]
    table = Prices({"m": Price(*[float(each) for each in exact])})  # in the order of its members
    of_input, of_output, of_cached, of_reasoning = exact
    wanted = (
        (usage.input - usage.cached) * of_input
        + usage.cached * of_cached
        + (usage.output - usage.reasoning) * of_output
        + usage.reasoning * of_reasoning
    )
    assert Fraction(table.cost("m", usage) or 0, 10**12) == wanted / 10**6


def test_names_that_clients_invent_do_not_pile_up() -> None:
    prices = Prices({"a*": SMALL})
    for number in range(5000):
        prices.of(f"model-{number}")
    assert len(prices._found) <= 1000
