"""The sums of the overview: over minutes, hours and days, bounded, and of one key alone."""

from __future__ import annotations

from bridge.core.events import Finished, Usage
from bridge.core.models import ModelChoice
from bridge.core.observer import TurnFacts
from bridge.counts import Histogram
from bridge.errors import BridgeError
from bridge.page.history import MAX_NAMES, STEPS, History, quantile
from bridge.protocols.registry import PROTOCOLS

DAY = 86400.0


class Bridge:
    """Requests, at any time."""

    def __init__(self) -> None:
        self.now = 20_000 * DAY
        self.history = History(lambda: self.now)

    def answer(self, model: str = "m", key: str = "key-a", seconds: float = 1.0, *, failed: bool = False) -> None:
        turn = PROTOCOLS["responses"].parse({"model": model, "input": "hi"}, ())
        facts = TurnFacts("req_1", key, 0.0, backend="codex", turn=turn.for_model(ModelChoice(model, model)))
        end = Finished("failed", error=BridgeError("no")) if failed else Finished("completed")
        self.history.ended(facts, end, Usage(input=10, output=3), seconds)


def test_requests_are_summed_by_minute() -> None:
    bridge = Bridge()
    bridge.answer()
    bridge.answer(failed=True)
    bridge.now += 60
    bridge.answer(model="n")
    shown = bridge.history.shown(1, None)
    assert (shown["span"], shown["step"]) == ("minutes", 60)
    assert [(each["requests"], each["failed"], each["input"], each["output"]) for each in shown["series"]] == [
        (2, 1, 20, 6),
        (1, 0, 10, 3),
    ]
    assert [(row["name"], row["requests"], row["failed"]) for row in shown["by"]["model"]] == [("m", 2, 1), ("n", 1, 0)]
    assert [(row["name"], row["requests"]) for row in shown["by"]["backend"]] == [("codex", 3)]


def test_longer_times_have_longer_steps() -> None:
    bridge = Bridge()
    for _ in range(3):
        bridge.answer()
        bridge.now += 3600
    for hours, span, buckets in ((2, "minutes", 2), (24, "hours", 3), (24 * 30, "days", 1)):
        shown = bridge.history.shown(hours, None)
        assert (shown["span"], len(shown["series"])) == (span, buckets)


def test_what_is_too_old_is_forgotten() -> None:
    bridge = Bridge()
    for _ in range(400):
        bridge.answer()
        bridge.now += DAY
    days = bridge.history.shown(24 * 1000, None)["series"]
    assert len(days) == STEPS["days"][1]


def test_names_are_bounded() -> None:
    """A client cannot fill the memory with models of its own invention."""
    bridge = Bridge()
    for number in range(MAX_NAMES * 3):
        bridge.answer(model=f"model-{number}")
    models = bridge.history.shown(1, None)["by"]["model"]
    assert len(models) == MAX_NAMES + 1
    assert models[0]["name"] == "other"
    assert sum(row["requests"] for row in models) == MAX_NAMES * 3


def test_a_key_sees_its_own_numbers_only() -> None:
    bridge = Bridge()
    bridge.answer(key="key-a")
    bridge.answer(key="key-b", model="secret-model")
    shown = bridge.history.shown(1, "key-a")
    assert [each["requests"] for each in shown["series"]] == [1]
    assert "secret-model" not in str(shown)
    assert "key-b" not in str(shown)


def test_quantiles_lie_within_their_bucket() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    assert quantile(histogram, 0.5) is None
    for value in (0.5, 1.5, 1.5, 3.0):
        histogram.observe(value)
    middle, high = quantile(histogram, 0.5), quantile(histogram, 0.99)
    assert middle is not None
    assert high is not None
    assert 1.0 <= middle <= 2.0 < high <= 4.0
    histogram.observe(1000.0)
    assert quantile(histogram, 1.0) == 4.0, "the largest bound that is known"
