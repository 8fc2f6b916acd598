"""Reading a client's JSON: limits, and the pieces that both formats share."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bridge.errors import InvalidRequest
from bridge.protocols.reading import MAX_DEPTH, Body, check_depth, parse_json, read_object, read_string, validate


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """An object whose deepest container lies `depth` levels down."""
    return b'{"a":' + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}"


def test_a_json_object_is_read() -> None:
    """Any object, with any unknown members; of two equal keys the last wins."""
    assert parse_json('{"a":[1,null,"é\u2028"],"b":{}}'.encode()) == {"a": [1, None, "é\u2028"], "b": {}}
    assert parse_json(b'{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \r\n\t",
        b"null",
        b"true",
        b"5",
        b'"text"',
        b"[]",
        b'[{"model":"m"}]',
        b"{",
        b'{"a":1',
        b"{'a':1}",
        b'{"a":1,}',
        b"{}x",
        b"{}{}",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e400}',
        b"\xef\xbb\xbf{}",
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\\ud800"}',
        b'{"\\udfff":1}',
        '{"a":1}'.encode("utf-16"),
        b"\x1f\x8b\x08",
        b"a=b&c=d",
        b'{"a":"\x00"}',
        b'{"a":"\n"}',
    ],
)
def test_anything_else_is_a_clean_400(body: bytes) -> None:
    """Whatever is no JSON object is the client's mistake, said in words."""
    with pytest.raises(InvalidRequest) as caught:
        parse_json(body)
    assert (caught.value.http_status, caught.value.code) == (400, "invalid_json")
    orjson.dumps(caught.value.body())


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
@pytest.mark.parametrize("depth", [MAX_DEPTH * 2, 500, 1000, 10_000, 100_000])
def test_deep_nesting_is_refused_before_anything_recursive(opening: bytes, closing: bytes, depth: int) -> None:
    """Far too deep is refused, never a crash."""
    with pytest.raises(InvalidRequest) as caught:
        parse_json(nested(depth, opening, closing))
    assert caught.value.http_status == 400


def test_the_limit_of_nesting_is_exact() -> None:
    """The limit itself is fine, one more is not."""
    assert parse_json(nested(MAX_DEPTH))
    with pytest.raises(InvalidRequest) as caught:
        parse_json(nested(MAX_DEPTH + 1))
    assert caught.value.code == "nesting_too_deep"


def test_width_is_no_depth() -> None:
    """Many members and long strings are fine, and cost linear time."""
    wide = {str(number): [{}, [number]] for number in range(50_000)}
    assert parse_json(orjson.dumps(wide)) == wide
    assert len(parse_json(b'{"a":"' + b"x" * 10_000_000 + b'"}')["a"]) == 10_000_000
    check_depth([[]] * 100_000)


# Bodies


class Inner(Body):
    size: int | None = None


class Outer(Body):
    """A body with a bit of everything."""

    name: str
    entries: list[Inner] | None = None


def test_a_body_is_read_strictly_and_keeps_what_it_does_not_know() -> None:
    """Known fields have their type, unknown ones stay as they are."""
    body = validate(Outer, {"name": "n", "entries": [{"size": 1, "more": True}], "other": [1]})
    assert (body.name, body.entries) == ("n", [Inner(size=1, more=True)])  # type: ignore[call-arg]
    assert body.model_extra == {"other": [1]}


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({}, "name"),
        ({"name": 5}, "name"),
        ({"name": "n", "entries": {}}, "entries"),
        ({"name": "n", "entries": [{}, {"size": "1"}]}, "entries[1].size"),
        ({"name": "n", "entries": [{"size": True}]}, "entries[0].size"),
    ],
)
def test_the_first_fault_is_named_with_its_place(data: dict[str, Any], param: str) -> None:
    """As OpenAI's `param` writes it: members by dots, entries by brackets."""
    with pytest.raises(InvalidRequest) as caught:
        validate(Outer, data)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("value", [None, 5, "x", [], True])
def test_an_object_is_an_object(value: Any) -> None:
    """Nothing stands for one."""
    assert read_object({"a": 1}, "place") == {"a": 1}
    with pytest.raises(InvalidRequest) as caught:
        read_object(value, "place")
    assert caught.value.param == "place"


@pytest.mark.parametrize("value", [None, 5, {}, ["x"], True])
def test_a_string_is_a_string(value: Any) -> None:
    """Nothing stands for one."""
    assert read_string("", "place") == ""
    with pytest.raises(InvalidRequest) as caught:
        read_string(value, "place")
    assert caught.value.param == "place"
