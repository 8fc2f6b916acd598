"""The matchers: what each rule takes, what it leaves, and which rules are none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.lab.rules import check_rule, matches

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4).filter(lambda name: not name.startswith("$")), inner, max_size=3)
    ),
    max_leaves=8,
)

TAKEN: list[tuple[Any, list[Any], list[Any]]] = [
    # a rule, what it takes, what it does not
    ("Bern", ["Bern"], ["bern", "Bern ", None, 1, ["Bern"]]),
    (1, [1, 1.0], [True, "1", 2, None]),
    (True, [True], [1, "true", False]),
    (None, [None], [0, False, "", []]),
    ([1, {"a": 2}], [[1, {"a": 2}]], [[{"a": 2}, 1], [1], [1, {"a": 2}, 3], [1, {"a": 2, "b": 3}], {"0": 1}]),
    ({"a": {"$type": "string"}}, [{"a": "x"}], [{"a": 1}, {}, {"a": "x", "b": 1}, [["a", "x"]]]),
    ({}, [{}], [{"a": 1}, [], None]),
    ({"$any": ["a", {"$number": 3}]}, ["a", 3, 3.0], ["b", "3", None]),
    ({"$regex": "^b.*n$"}, ["bern", "bn"], ["Bern", "", 5, None]),
    ({"$contains": "Bern"}, ["in BERN!", "bern"], ["ber", 5, ["Bern"]]),
    ({"$contains": "STRASSE"}, ["Hauptstraße"], []),
    ({"$same": "Main  Street"}, ["main street", " MAIN\tSTREET "], ["mainstreet", "main street 5", 5]),
    ({"$lines": "a\n B"}, ["a\n B", "a\n B\n"], ["a B", "a\n b", "a\n B\n\n", "a\n B ", 5]),
    ({"$lines": "a\n"}, ["a", "a\n"], ["a ", "A"]),
    ({"$number": 3}, [3, 3.0], ["3", True, 3.1, None]),
    ({"$number": 1}, [1], [True]),
    ({"$near": [3, 0.25]}, [3, 2.75, 3.25], [3.5, "3", True, None]),
    ({"$type": "string"}, ["", "a"], [1, None, []]),
    ({"$type": "number"}, [1, 1.5], [True, "1"]),
    ({"$type": "integer"}, [1, -3], [True, 1.5, "1"]),
    ({"$type": "boolean"}, [True, False], [0, "true"]),
    ({"$type": "object"}, [{}, {"a": 1}], [[], "{}"]),
    ({"$type": "array"}, [[], [1]], [{}, "[]"]),
    ({"$type": "null"}, [None], [0, "", False]),
    ({"$length": [1, 2]}, ["a", "ab", [1], [1, 2]], ["", "abc", [], {"a": 1}, 1]),
    ({"$set": ["a", {"$number": 1}]}, [["a", 1], [1.0, "a"]], [["a"], ["a", 1, 1], ["a", "a"], "a1", {"a": 1}]),
    ({"$set": [{"$any": [1, 2]}, 1]}, [[1, 2], [2, 1], [1, 1]], [[2, 2], [1]]),
    ({"$anything": True}, [None, "", 0, [], {"a": 1}], []),
    ({"$any": [{"$set": [{"$contains": "x"}]}, []]}, [["axe"], []], [["a"], "x"]),
]

NO_RULES = [
    ({"$anny": ["a"]}, "$anny"),
    ({"$any": ["a"], "b": 1}, "$any"),
    ({"$any": ["a"], "$regex": "a"}, "$any, $regex"),
    ({"$any": "a"}, "$any takes a list"),
    ({"$any": []}, "$any takes a list"),
    ({"$set": {"a": 1}}, "$set takes a list"),
    ({"$regex": "("}, "$regex '('"),
    ({"$regex": 5}, "$regex takes text"),
    ({"$contains": ["a"]}, "$contains takes text"),
    ({"$same": None}, "$same takes text"),
    ({"$number": "3"}, "$number takes a number"),
    ({"$number": True}, "$number takes a number"),
    ({"$near": 3}, "$near takes two numbers"),
    ({"$near": [3]}, "$near takes two numbers"),
    ({"$length": [1, "2"]}, "$length takes two numbers"),
    ({"$type": "text"}, "$type takes one of string"),
    ({"$anything": False}, "$anything takes true"),
    ({"$any": [{"$near": 1}]}, "$near takes two numbers"),
    ({"a": [{"b": {"$near": 1}}]}, "$near takes two numbers"),
    ([{"$set": [[{"$same": 1}]]}], "$same takes text"),
]


class TestMatching:
    @pytest.mark.parametrize(("rule", "taken", "left"), TAKEN, ids=[str(rule) for rule, *_ in TAKEN])
    def test_what_a_rule_matches(self, rule: Any, taken: list[Any], left: list[Any]) -> None:
        assert check_rule(rule) is None
        assert [value for value in taken if not matches(rule, value)] == []
        assert [value for value in left if matches(rule, value)] == []

    @given(json_values)
    def test_a_plain_value_means_itself(self, value: Any) -> None:
        assert check_rule(value) is None
        assert matches(value, value)
        assert matches({"$anything": True}, value)
        assert matches({"$any": [value]}, value)
        assert matches([value], [value])
        assert not matches([value], value)

    @given(st.lists(st.text(max_size=2) | st.integers(0, 3), min_size=1, max_size=5), st.randoms())
    def test_the_order_of_a_set_does_not_matter(self, values: list[Any], random: Any) -> None:
        other = random.sample(values, len(values))
        assert matches({"$set": values}, other)
        assert not matches({"$set": values}, [*other, "more"])
        assert not matches({"$set": values}, other[1:])


class TestChecking:
    @pytest.mark.parametrize(("rule", "message"), NO_RULES, ids=[str(rule) for rule, _ in NO_RULES])
    def test_invalid_rules(self, rule: Any, message: str) -> None:
        assert message in str(check_rule(rule))
