"""Two requests are the same when nothing differs that could change the answer."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.appserver.standin.recorded import describe, differences, distance
from bridge.errors import UsageError
from bridge.log.recording import Recording
from bridge.playback.player import IGNORED, Ignore, LogPlayer, fingerprint, normalise
from bridge.playback.recorded import NoRecording

Json = dict[str, Any]
NOTHING = Ignore()
TOOL = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"role": {"type": "string"}, "id": {"type": "string"}}},
}


def key(body: Json, *ignore: str, path: Any = "responses") -> bytes:
    return fingerprint(normalise(body, path, Ignore(ignore)))


def described(recorded: Json, received: Json, path: Any = "responses") -> str:
    """How two requests differ."""
    return describe(differences(normalise(recorded, path, NOTHING), normalise(received, path, NOTHING)))


texts = st.text(min_size=1, max_size=6)
items = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, texts),
    st.builds(lambda text: {"role": "assistant", "content": [{"type": "output_text", "text": text}]}, texts),
    st.builds(lambda name: {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}, texts),
    st.builds(lambda text: {"type": "function_call_output", "call_id": "c", "output": text}, texts),
)
bodies = st.builds(
    lambda model, said, more: {"model": model, "input": said, **more},
    st.sampled_from(["gpt-5.2", "m"]),
    st.one_of(texts, st.lists(items, min_size=1, max_size=4)),
    st.fixed_dictionaries(
        {},
        optional={
            "instructions": texts,
            "tools": st.just([TOOL]),
            "temperature": st.sampled_from([0, 0.5, 1]),
            "reasoning": st.just({"effort": "low"}),
        },
    ),
)


def shuffled(value: Any, seed: int) -> Any:
    """The same, with members in another order and with nulls between."""
    if isinstance(value, dict):
        members = [(name, shuffled(member, seed)) for name, member in value.items()]
        random.Random(seed).shuffle(members)
        return dict(members) | {f"unset{seed}": None}
    return [shuffled(member, seed) for member in value] if isinstance(value, list) else value


def respelled(body: Json) -> Json:
    """The same in the words of another client."""
    said = body["input"]
    said = [{"role": "user", "content": said}] if isinstance(said, str) else copy.deepcopy(said)
    for item in said:
        if isinstance(item.get("content"), str):
            item["content"] = [{"type": "input_text", "text": item["content"]}]
        elif "content" in item:
            item["content"] = item["content"][0]["text"]
        if "role" in item:
            item |= {"type": "message", "id": "msg_1", "status": "completed"}
        else:
            item |= {"id": "fc_1", "status": "completed"}
    return body | {"input": said, "model": body["model"].upper()}


def strings(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, str):
        return [place]
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for name, member in members for found in strings(member, (*place, name))]


@given(bodies, st.integers(0, 99))
def test_order_nulls_and_spelling_do_not_count(body: Json, seed: int) -> None:
    assert key(shuffled(body, seed)) == key(body)
    assert key(respelled(body)) == key(body)
    assert key(body | dict.fromkeys(IGNORED, "whatever")) == key(body)


@given(bodies, st.data())
def test_a_changed_text_is_a_difference_and_is_reported(body: Json, data: st.DataObject) -> None:
    other = copy.deepcopy(body)
    *above, last = data.draw(st.sampled_from(strings(other)))
    holder: Any = other
    for name in above:
        holder = holder[name]
    holder[last] += "~"
    assert key(other) != key(body)
    received, recorded = normalise(other, "responses", NOTHING), normalise(body, "responses", NOTHING)
    assert distance(recorded, received) > 0
    assert '~"' in describe(differences(recorded, received))


@given(bodies)
def test_a_request_is_nearest_to_itself(body: Json) -> None:
    request = normalise(body, "responses", NOTHING)
    assert distance(request, copy.deepcopy(request)) == 0
    assert list(differences(request, copy.deepcopy(request))) == []


def test_a_schema_is_compared_as_it_is() -> None:
    """Properties that are called like members of an item are no members of an item."""
    other = copy.deepcopy(TOOL)
    del other["parameters"]["properties"]["id"]  # type: ignore[index]
    assert key({"model": "m", "input": "x", "tools": [TOOL]}) != key({"model": "m", "input": "x", "tools": [other]})


def test_an_empty_list_differs_from_a_missing_one() -> None:
    one, other = {"model": "m", "input": "x", "tools": []}, {"model": "m", "input": "x"}
    assert key(one) != key(other)
    assert described(other, one) == "tools: recorded nothing, received []"


def test_chat_and_responses_are_normalised_separately() -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert key(chat, path="chat") == key(
        chat | {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}
    )
    assert key(chat, path="chat") != key({"model": "m", "input": "x"})


def test_several_parts_and_images_are_not_normalised() -> None:
    one = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert key({"model": "m", "input": [{"role": "user", "content": one}]}) != key({"model": "m", "input": "ab"})
    image = [{"type": "input_image", "image_url": "data:,"}]
    assert key({"model": "m", "input": [{"role": "user", "content": image}]}) != key({"model": "m", "input": "data:,"})


@pytest.mark.parametrize(
    ("places", "other"),
    [
        (["instructions"], {"instructions": "b"}),
        (["input.*.content"], {"input": [{"role": "user", "content": "b"}]}),
        (["input.0"], {"input": []}),
        (["*"], {"input": "b", "instructions": "b", "tools": [1]}),
        (["tools.*.parameters.properties.*"], {"tools": [{"parameters": {"properties": {"b": 1}}}]}),
        (["none.such.place", "tools.5.name", "instructions"], {"instructions": None}),
    ],
)
def test_ignored_paths(places: list[str], other: Json) -> None:
    body = {
        "model": "m",
        "input": [{"role": "user", "content": "a"}],
        "instructions": "a",
        "tools": [{"parameters": {"properties": {"a": 1}}}],
    }
    assert key(body, *places) == key(body | other, *places)
    assert key(body) != key(body | other)


@pytest.mark.parametrize("place", ["", ".", "a..b", "a."])
def test_a_path_with_an_empty_name_is_rejected(place: str) -> None:
    with pytest.raises(UsageError, match="--ignore takes the path of a member"):
        Ignore([place])


def test_a_description_is_short() -> None:
    one, other = ({f"p{number}": text for number in range(9)} for text in ("a", "b" * 500))
    text = describe(differences(one, other))
    assert text.endswith(" (and 6 more)")
    assert len(text) < 300


@pytest.mark.parametrize(
    ("protocol", "received"),
    [("responses", {"model": "m", "input": "x", "stop": ["a"]}), ("chat", {"model": "m"})],
    ids=["a null in a list", "another kind"],
)
def test_a_miss_always_names_a_difference(protocol: str, received: Json) -> None:
    """Also where no member has another value."""
    body = {"model": "m", "input": "x", "stop": ["a", None]} if protocol == "responses" else {"model": "m"}
    recording = Recording("req_1", Path("log"), request={"path": "/v1/responses", "body": body})
    with pytest.raises(NoRecording, match="it differs in its kind, or in members that are null"):
        LogPlayer([recording]).choose(cast(Any, None), protocol, received)


@pytest.mark.parametrize("value", [1e308, -1e308, 2**63 - 1, 1.5, 1e29, True])
def test_any_number_has_a_fingerprint(value: float) -> None:
    assert key({"model": "m", "input": "x", "temperature": value}) != key(
        {"model": "m", "input": "x", "temperature": 7}
    )
    assert key({"temperature": 1.0}) == key({"temperature": 1})


# CAP


def assist(**payload: Any) -> Json:
    """A ServiceRequest; each has another id and comes in another session."""
    number = f"{random.getrandbits(48):012x}"
    return {
        "request_id": f"550e8400-e29b-41d4-a716-{number}",
        "context": {"session_id": number, "user": {"id": number, "name": "Ada"}},
        "payload": {"query": "hi", "request_id": f"550e8400-e29b-41d4-a716-{number}", **payload},
    }


@pytest.mark.parametrize(
    "same",
    [
        {},
        {"files": [], "conversation_id": "", "meta": None},
        {"meta": {"events": ["metrics"], "timeout_ms": 5, "trace": "x"}},
        {"meta": {"codex": {"events": []}}},
        {"session_id": None, "parent_request_id": None},
    ],
)
def test_sender_session_and_events_do_not_count(same: Json) -> None:
    assert key(assist(**same), path="cap") == key(assist(), path="cap")


@pytest.mark.parametrize(
    "other",
    [
        {"query": "ho"},
        {"files": ["https://example.org/a.png"]},
        {"conversation_id": "c"},
        {"meta": {"model": "m"}},
        {"meta": {"instructions": "Be brief."}},
        {"meta": {"codex": {"effort": "low"}}},
        {"meta": {"output_schema": {"type": "object"}}},
        {"meta": {"sandbox": "read-only"}},
    ],
)
def test_members_that_change_the_answer_count(other: Json) -> None:
    assert key(assist(**other), path="cap") != key(assist(), path="cap")
    place = next(iter(other))
    assert key(assist(**other), f"payload.{place}", path="cap") == key(assist(), f"payload.{place}", path="cap")


def test_a_member_of_meta_may_be_under_codex() -> None:
    one, other = (
        {"model": "M", "instructions": "x"},
        {"instructions": "no", "codex": {"model": "m", "instructions": "x"}},
    )
    assert key(assist(meta=one), path="cap") == key(assist(meta=other), path="cap")
    agent = assist()
    agent["context"]["agent"] = {"id": "helper", "name": "Helper"}
    assert described(assist(), agent, "cap") == 'context: recorded nothing, received {"agent":{"id":"helper"}}'


@given(
    st.recursive(
        st.none() | st.text(max_size=3) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["payload", "context", "agent", "id", "meta", "codex", "model", "query"]),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_any_body_has_a_fingerprint(value: Any) -> None:
    body = value if isinstance(value, dict) else {"payload": value}
    assert key(body, path="cap") == key(copy.deepcopy(body), path="cap")
