"""What functions are called upstream, and back."""

from __future__ import annotations

from bridge.core.items import FunctionTool
from bridge.protocols.chat.build import MAX_NAME
from bridge.protocols.upstream import ToolNames


def names_of(*tools: FunctionTool) -> list[str]:
    return list(ToolNames(tools, MAX_NAME).tools)


def test_a_legal_name_stays() -> None:
    assert names_of(FunctionTool("get_weather-2")) == ["get_weather-2"]


def test_namespaces_and_odd_characters_are_written_differently() -> None:
    tools = (FunctionTool("get", namespace="crm"), FunctionTool("a.b"), FunctionTool("a:b"), FunctionTool("x" * 100))
    assert names_of(*tools) == ["crm__get", "a__b", "a_b", "x" * 64]


def test_names_that_become_the_same_are_told_apart_and_a_legal_one_is_never_taken() -> None:
    tools = (FunctionTool("get", namespace="a"), FunctionTool("a__get"), FunctionTool("a__get_2"))
    names = ToolNames(tools, MAX_NAME)
    assert list(names.tools) == ["a__get_3", "a__get", "a__get_2"]
    assert names.of("a.get") == "a__get_3"
    assert tuple(names.tools.values()) == tools


def test_long_names_stay_within_the_limit_and_apart() -> None:
    tools = [FunctionTool("x" * 80 + str(number)) for number in range(12)]
    names = names_of(*tools)
    assert len(set(names)) == 12
    assert max(map(len, names)) == MAX_NAME


def test_a_function_of_the_past_gets_a_legal_name_too() -> None:
    assert ToolNames((), MAX_NAME).of("crm.get customer") == "crm__get_customer"


def test_many_names_with_one_beginning_take_linear_time() -> None:
    def tries(count: int) -> int:
        names = ToolNames([FunctionTool("x" * 70 + str(number)) for number in range(count)], MAX_NAME)
        return sum(names._numbers.values())

    assert tries(400) < 2.5 * tries(200)
