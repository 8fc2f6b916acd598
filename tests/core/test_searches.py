"""What a search did is told as clients' types know it, whatever a provider says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseFunctionWebSearch

from bridge.core.events import search_action

SCALARS = st.sampled_from([None, True, 5, 0.5, "", "x"])
SOURCES = st.lists(st.dictionaries(st.sampled_from(["type", "url"]), SCALARS | st.just("url")), max_size=2)
MEMBERS = dict.fromkeys(("query", "url", "pattern"), SCALARS) | {
    "type": st.sampled_from(["search", "open_page", "find_in_page", "ask", None, 5]),
    "queries": SCALARS | st.lists(SCALARS, max_size=2),
    "sources": SCALARS | SOURCES,
}


@given(st.fixed_dictionaries({}, optional=MEMBERS))
def test_any_action_is_one_that_clients_know(told: dict[str, Any]) -> None:
    item = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": search_action(told)}
    ResponseFunctionWebSearch.model_validate(item, strict=True)


@pytest.mark.parametrize(
    "told",
    [
        {"type": "search", "query": "tea", "queries": ["tea"], "sources": [{"type": "url", "url": "http://a"}]},
        {"type": "search", "query": None},
        {"type": "open_page", "url": None},
        {"type": "find_in_page", "url": "http://a", "pattern": "b"},
    ],
)
def test_what_they_know_is_told_as_it_was(told: dict[str, Any]) -> None:
    assert search_action(told) == told


def test_what_they_do_not_know_is_a_search() -> None:
    assert search_action({"type": "search", "query": "tea", "pages": 5}) == {"type": "search", "query": "tea"}
    assert search_action({"type": "ask", "query": "tea"}) == {"type": "search", "query": "tea"}
    assert search_action({"query": 5}) == {"type": "search", "query": ""}
