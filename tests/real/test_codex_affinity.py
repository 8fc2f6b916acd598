"""A real Codex behind the bridge: a conversation keeps its thread, and with it the provider's cache key."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from real.rig import CHAT, CURRENT, LOOK, NEWEST, RESPONSES, Rig, Target, UseRig, said


def keys(rig: Rig) -> list[str]:
    """The cache keys of the model calls since the test began."""
    return [post.body["prompt_cache_key"] for post in rig.posts]


def converse(rig: Rig, turns: int, **more: Any) -> list[dict[str, Any]]:
    """A chat of so many turns, each answered by a thought and a text; its messages."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "be brief"}]
    for number in range(turns):
        action = {"do": "reasoning", "pieces": [f"answer {number}"], "usage": {"input": 10 + number}}
        messages.append({"role": "user", "content": said(action)})
        answer = rig.send(CHAT, {"model": "gpt-5.2", "messages": messages, **more})
        assert answer.text == f"answer {number}"
        assert answer.usage is not None
        assert answer.usage[0] == 10 + number, "each answer counts its own tokens"
        messages.append({"role": "assistant", "content": answer.text})
    return messages


def test_a_chat_keeps_its_cache_key(use: UseRig) -> None:
    """Every turn goes to the same thread, and the prompt only grows at its end."""
    rig = use(CURRENT)
    converse(rig, 4)
    assert len(set(keys(rig))) == 1
    prompts = [post.body["input"] for post in rig.posts]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before
        assert [item["type"] for item in after[len(before) :]] == ["reasoning", "message", "message"]


def test_responses_keep_it_too(use: UseRig) -> None:
    """Continued by previous_response_id."""
    rig = use(CURRENT)
    previous = None
    for number in range(3):
        answer = rig.ask(RESPONSES, {"do": "text", "pieces": [str(number)]}, previous_response_id=previous)
        previous = answer.raw["id"]
    assert len(set(keys(rig))) == 1
    assert [item["content"][0]["text"] for item in rig.posts[-1].body["input"] if item["role"] == "assistant"] == [
        "0",
        "1",
    ]


def test_another_conversation_has_another(use: UseRig) -> None:
    """Also one that begins in the same way and was edited; it sees what was sent, nothing else."""
    rig = use(CURRENT)
    messages = converse(rig, 2)
    edited = [*messages[:2], {"role": "assistant", "content": "something else"}, messages[3]]
    rig.send(CHAT, {"model": "gpt-5.2", "messages": edited})
    first, second, third = keys(rig)
    assert first == second != third
    texts = [item["content"][0]["text"] for item in rig.posts[-1].body["input"]]
    assert texts[2] == "something else"


def test_outputs_of_tools_reach_the_model(use: UseRig) -> None:
    """After a call the history is given anew: the call and its output stand in it once."""
    rig = use(CURRENT)
    action = {"do": "calls", "calls": [{"name": "look", "arguments": '{"q":"x"}'}]}
    answer = rig.ask(RESPONSES, action, tools=[LOOK])
    output = {"type": "function_call_output", "call_id": answer.call_ids[0], "output": "found"}
    body = {"model": "gpt-5.2", "input": [output], "previous_response_id": answer.raw["id"]}
    offered = {"tools": [{"type": "function", **LOOK}]}
    assert rig.send(RESPONSES, body | offered).text == "result: found"
    kinds = [item["type"] for item in rig.posts[-1].body["input"]]
    assert kinds.count("function_call") == kinds.count("function_call_output") == 1


def test_it_can_be_switched_off(use: UseRig) -> None:
    """With PROXY_KEPT_THREADS=0 every turn has a thread of its own."""
    rig = use(CURRENT, PROXY_KEPT_THREADS="0")
    converse(rig, 3)
    assert len(set(keys(rig))) == 3


@pytest.mark.parametrize("target", [CURRENT, NEWEST], ids=str)
def test_a_thread_that_was_started_ahead_answers_its_own_prompt(use: UseRig, target: Target) -> None:
    """Conversation after conversation with the same instructions: one model call each, with its own prompt alone."""
    rig = use(target, PROXY_KEPT_THREADS="0")
    prompts = [said({"do": "text", "pieces": [f"answer {number}"]}) for number in range(30)]
    for number, prompt in enumerate(prompts):
        assert rig.send(RESPONSES, RESPONSES.body(prompt, instructions="be brief")).text == f"answer {number}"
    assert len(set(keys(rig))) == len(rig.posts) == len(prompts)
    for post, prompt in zip(rig.posts, prompts, strict=True):
        assert [part["text"] for item in post.body["input"] for part in item["content"]][-1] == prompt
        assert sum(item["role"] == "user" for item in post.body["input"]) == 1
