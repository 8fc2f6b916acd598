"""Recorded ids become ids of this process, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bridge.appserver.standin.messages import IdMap, UniqueIds

THREAD, TURN, ITEM = "01a1e19c-4dd4-7b02-a168-ad681144c109", "01a1e19c-4de4-7d73-b454-42ed542cb1bc", "msg_54"
IDS = (THREAD, TURN, ITEM)

texts = st.one_of(st.sampled_from(IDS), st.text(max_size=20), st.sampled_from([f"see {one}" for one in IDS]))
"""What somebody says: anything, ids among it."""
data: st.SearchStrategy[Any] = st.recursive(
    texts | st.none() | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "threadId", "turn_id", "item", "thread", "text", "call_id"]), inner)
    ),
    max_leaves=8,
)
"""What a tool is called with or answers: it may be named and look like anything of Codex's own."""


def again() -> IdMap:
    """A naming for which every recorded id is taken."""
    names = UniqueIds()
    for one in IDS:
        names.give(one)
    naming = IdMap(names, names.give(THREAD))
    naming.begin((0, 0), THREAD)
    return naming


def messages(said: str, given: Any) -> list[dict[str, Any]]:
    """Messages of both dialects that hold what was said and given, and all ids."""
    ids = {"threadId": THREAD, "turnId": TURN}
    item = {"type": "agentMessage", "id": ITEM, "text": said, "memo": given}
    tool = {
        "type": "dynamicToolCall",
        "id": ITEM,
        "arguments": given,
        "contentItems": [{"text": said}],
        "output": given,
    }
    content = [{"type": "Text", "text": said}]
    event = {"type": "item_completed", "thread_id": THREAD, "turn_id": TURN, "item": {"id": ITEM, "content": content}}
    return [
        {"method": "item/agentMessage/delta", "params": {**ids, "itemId": ITEM, "delta": said}},
        {"method": "item/completed", "params": {**ids, "item": item}},
        {"method": "item/completed", "params": {**ids, "item": tool}},
        {"method": "item/tool/call", "id": 4, "params": {**ids, "callId": ITEM, "tool": said, "arguments": given}},
        {
            "method": "turn/completed",
            "params": {"threadId": THREAD, "turn": {"id": TURN, "items": [item], "error": said}},
        },
        {"id": 3, "result": {"thread": {"id": THREAD, "preview": said, "extra": given}, "model": said}},
        {"id": 3, "error": {"code": 1, "message": said, "data": given}},
        {"method": "codex/event/item_completed", "params": {"id": TURN, "msg": event, "conversationId": THREAD}},
        {
            "method": "codex/event/agent_message",
            "params": {"id": TURN, "msg": {"message": said}, "conversationId": THREAD},
        },
    ]


@given(texts, data)
def test_content_is_never_changed(said: str, given: Any) -> None:
    """Not even where it is an id: only the members that name threads, turns and items change, everywhere alike."""
    naming = again()
    # The same messages about nothing, whose ids alone can have changed.
    silent = [naming.message(message) for message in messages("", None)]
    for spoken, plain in zip(messages(said, given), silent, strict=True):
        assert naming.message(spoken) == _fill(plain, spoken, said, given)


def _fill(plain: Any, spoken: Any, said: str, given: Any) -> Any:
    """The silent message with what was said put back where it stood."""
    if isinstance(plain, dict):
        return {name: _fill(value, spoken[name], said, given) for name, value in plain.items()}
    if isinstance(plain, list):
        return [_fill(value, inner, said, given) for value, inner in zip(plain, spoken, strict=True)]
    return said if plain == "" else given if plain is None else plain


def test_each_id_is_replaced_consistently() -> None:
    """In all messages of a turn; a free one is used as it is; another turn of the same recording gets others."""
    naming = again()
    text = json.dumps([naming.message(message) for message in messages("", None)])
    assert not [one for one in IDS if f'"{one}"' in text]
    free = IdMap(UniqueIds(), THREAD)
    free.begin((0, 0), THREAD)
    assert [free.message(message) for message in messages("x", 1)] == messages("x", 1)
    free.begin((0, 1), THREAD)
    assert free.message(messages("x", 1)[0]) == messages("x", 1)[0]
    free.begin((0, 1), THREAD)
    changed = free.message(messages("x", 1)[0])["params"]
    assert changed["threadId"] == THREAD
    assert changed["turnId"] != TURN
    assert changed["itemId"] != ITEM


def test_files_are_named_after_their_thread() -> None:
    """Where a path holds the id of the thread, it holds ours."""
    naming = again()
    message = {"id": 1, "result": {"conversationId": THREAD, "rolloutPath": f"/s/rollout-{THREAD}.jsonl"}}
    result = naming.message(message)["result"]
    assert result["rolloutPath"] == f"/s/rollout-{result['conversationId']}.jsonl"
    assert result["conversationId"] != THREAD
