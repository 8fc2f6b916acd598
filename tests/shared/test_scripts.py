"""The token bucket inside the server, against a model of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared.redis import Redis

from bridge.shared.scripts import TAKE_REQUEST

KEY = "turnbridge:requests:model"

Step = tuple[float, float]
"""(seconds since the step before, what the caller believes is left)"""


def fields(server: Redis) -> tuple[float, int]:
    """(requests left, microseconds of the server's clock)."""
    lines = server.command("HMGET", KEY, "left", "at").split("\r\n")
    return float(lines[2]), int(lines[4])


@given(
    limit=st.integers(1, 100),
    steps=st.lists(st.tuples(st.floats(0, 90), st.one_of(st.just(1e9), st.floats(0, 50))), max_size=8),
)
def test_the_bucket_is_that_of_the_model(server: Redis, limit: int, steps: list[Step]) -> None:
    """It refills with the clock up to the limit, believes the lower count, and gives only what is there."""
    server.command("DEL", KEY)
    left, at = float(limit), 0
    for pause, hint in steps:
        if at:
            at -= int(pause * 1e6)
            server.command("HSET", KEY, "at", str(at))  # as if that much time had passed
        answer = server.command("EVAL", TAKE_REQUEST, "1", KEY, str(limit), repr(hint)).split("\r\n")
        stored, now = fields(server)
        left = min(limit, left + (now - at) / 1e6 * limit / 60, hint) if at else min(limit, hint)
        taken = left >= 1
        left -= taken
        assert answer[1] == f":{int(taken)}"
        assert stored == pytest.approx(left, abs=1e-6)
        assert float(answer[3]) == stored
        left, at = stored, now
