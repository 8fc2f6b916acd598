"""JSON whose integers keep every digit, and which is orjson's in all other respects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import exact_json


@dataclass(frozen=True, slots=True)
class Pair:
    a: int
    b: str


NUMBERS = st.integers(-(10**40), 10**40) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text("ab0123456789é😀", max_size=25),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("ab0123456789", max_size=22), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    """Types included: an integer never becomes a float, nor a float an integer."""
    text = exact_json.dumps(value)
    assert json.dumps(exact_json.loads(text)) == json.dumps(value)
    assert json.dumps(exact_json.loads(text.decode())) == json.dumps(value)
    assert json.loads(text) == value


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**308])
def test_the_limits_of_64_bits(number: int) -> None:
    for text in (f"[{number}]", f' {{"a" : {number} }} ', f'{{"{number}":[{{"b":[{number},1.5]}}]}}'):
        assert exact_json.dumps(exact_json.loads(text)).decode() == text.replace(" ", "")


@pytest.mark.parametrize(
    "text", ["", "[1", "NaN", "1e400", '"\\ud800"', b"\xff", "1" * 400, "[01]", "12345678901234567890 1"]
)
def test_what_orjson_refuses_is_refused(text: str | bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        exact_json.loads(text)


def test_nesting() -> None:
    """As deep as orjson reads and writes, with the same errors beyond that."""
    deep: Any = 2**70
    for _ in range(250):
        deep = [deep]
    assert exact_json.loads(exact_json.dumps(deep)) == deep
    with pytest.raises(TypeError):
        exact_json.dumps([[[[[[deep]]]]]])
    exact_json.loads(b"[" * 1000 + b"%d" % 2**70 + b"]" * 1000)  # whatever comes of it, no exception does


def test_what_is_no_json() -> None:
    """Dataclasses are objects, and other mappings where the caller says so; what is nothing is an error."""
    given = MappingProxyType({"a": (2**70, None)})
    assert exact_json.dumps(given, default=dict) == b'{"a":[1180591620717411303424,null]}'
    assert exact_json.dumps([Pair(2**70, "x")]) == b'[{"a":1180591620717411303424,"b":"x"}]'
    with pytest.raises(TypeError):
        exact_json.dumps({"a": object(), "b": 2**70})
    with pytest.raises(TypeError):
        exact_json.dumps({"a": "\ud800", "b": 2**70})
    assert exact_json.dumps({"b": 2**70, "a": 1}, option=orjson.OPT_SORT_KEYS).startswith(b'{"a":1,')
