"""What functions are called upstream, and back."""

from __future__ import annotations

from bridge.backends.openai_compatible.names import MAX_NAME, ToolNames
from bridge.turn.items import FunctionTool


def names_of(*tools: FunctionTool) -> list[str]:
    return list(ToolNames(tools).tools)


def test_a_legal_name_stays() -> None:
    assert names_of(FunctionTool("get_weather-2")) == ["get_weather-2"]


def test_namespaces_and_odd_characters_are_written_differently() -> None:
    tools = (FunctionTool("get", namespace="crm"), FunctionTool("a.b"), FunctionTool("a:b"), FunctionTool("x" * 100))
    assert names_of(*tools) == ["crm__get", "a__b", "a_b", "x" * 64]


def test_names_that_become_the_same_are_told_apart_and_a_legal_one_is_never_taken() -> None:
    tools = (FunctionTool("get", namespace="a"), FunctionTool("a__get"), FunctionTool("a__get_2"))
    names = ToolNames(tools)
    assert list(names.tools) == ["a__get_3", "a__get", "a__get_2"]
    assert names.of("a.get") == "a__get_3"
    assert tuple(names.tools.values()) == tools


def test_long_names_stay_within_the_limit_and_apart() -> None:
    tools = [FunctionTool("x" * 80 + str(number)) for number in range(12)]
    names = names_of(*tools)
    assert len(set(names)) == 12
    assert max(map(len, names)) == MAX_NAME


def test_a_function_of_the_past_gets_a_legal_name_too() -> None:
    assert ToolNames(()).of("crm.get customer") == "crm__get_customer"
