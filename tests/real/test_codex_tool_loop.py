"""A real Codex behind the bridge: an agent's tool loop runs in one thread, with one cache key, in both tool modes."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from real.rig import CHAT, CURRENT, LOOK, NEWEST, RESPONSES, Answer, Api, Rig, Target, UseRig, said, start_rig

STEPS = 20


@pytest.fixture(params=["text", "native"])
def mode(request: pytest.FixtureRequest) -> str:
    """Both ways to offer tools."""
    return str(request.param)


@pytest.fixture(params=[CURRENT, NEWEST], ids=str)
def rig(request: pytest.FixtureRequest, use: UseRig, mode: str) -> Rig:
    """The pinned and the newest Codex."""
    target: Target = request.param
    return use(target, PROXY_TOOL_MODE=mode)


def loop(steps: int) -> dict[str, Any]:
    """The script of a model that calls a function in each step, and then says that it is done."""
    action: dict[str, Any] = {"do": "text", "pieces": ["done"]}
    for step in reversed(range(steps)):
        call = {"name": "look", "arguments": f'{{"q":"{step}"}}'}
        action = {"do": "calls", "calls": [call], "summary": [f"thought {step}"], "then": action}
    return action


def given_back(api: Api, answer: Answer, outputs: list[str]) -> list[dict[str, Any]]:
    """An answer with calls as the client sends it back, and the outputs of its calls."""
    made = list(zip(answer.call_ids, answer.calls, strict=True))
    if api is CHAT:
        calls = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, (name, arguments) in made
        ]
        results = [
            {"role": "tool", "tool_call_id": call_id, "content": output}
            for (call_id, _), output in zip(made, outputs, strict=True)
        ]
        return [{"role": "assistant", "content": answer.text or None, "tool_calls": calls}, *results]
    items = [item for item in answer.raw["output"] if item["type"] != "reasoning"]
    results = [
        {"type": "function_call_output", "call_id": call_id, "output": output}
        for (call_id, _), output in zip(made, outputs, strict=True)
    ]
    return [*items, *results]


def run(rig: Rig, api: Api, steps: int = STEPS, **more: Any) -> Answer:
    """Run a loop to its end; the last answer."""
    body = api.body("", tools=[LOOK], **more)
    place = "messages" if api is CHAT else "input"
    body[place] = [{"role": "user", "content": said(loop(steps))}]
    for step in range(steps):
        answer = rig.send(api, body)
        assert answer.calls == (("look", f'{{"q":"{step}"}}'),), answer
        assert answer.usage is not None
        assert answer.usage[0] == 11, "each answer counts its own tokens"
        body[place] += given_back(api, answer, [f"output {step}"])
    return rig.send(api, body)


def test_a_loop_has_one_cache_key(rig: Rig, api: Api) -> None:
    """One thread: every prompt begins with the one before, and each output stands in it once, next to its call."""
    assert run(rig, api).text == "done"
    assert len(rig.posts) == STEPS + 1, "one model call for each request"
    assert len({post.body["prompt_cache_key"] for post in rig.posts}) == 1
    prompts = [post.body["input"] for post in rig.posts]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before
    outputs = [item["output"] for item in prompts[-1] if item["type"] == "function_call_output"]
    assert outputs == [f"output {step}" for step in range(STEPS)]
    calls = [item["call_id"] for item in prompts[-1] if item["type"] == "function_call"]
    assert calls == [item["call_id"] for item in prompts[-1] if item["type"] == "function_call_output"]
    assert [item["type"] for item in prompts[-1]].count("reasoning") == STEPS, "it keeps its thoughts"


def test_the_clients_own_cache_key_keeps_conversations_apart(rig: Rig, api: Api) -> None:
    """Two that say the same under other keys never share a thread."""
    for key in ("one", "two"):
        run(rig, api, 2, prompt_cache_key=key)
    keys = [post.body["prompt_cache_key"] for post in rig.posts]
    assert len(set(keys[:3])) == len(set(keys[3:])) == 1
    assert keys[0] != keys[3]


def test_calls_made_at_once_are_answered_at_once(rig: Rig, api: Api) -> None:
    """Codex asks for the outputs of native calls one after the other; the model gets them in its order."""
    made = [{"name": "look", "arguments": f'{{"q":"{name}"}}'} for name in "abc"]
    place = "messages" if api is CHAT else "input"
    body = api.body(said({"do": "calls", "calls": made}), tools=[LOOK])
    if api is RESPONSES:
        body[place] = [{"role": "user", "content": body[place]}]
    answer = rig.send(api, body)
    body[place] += given_back(api, answer, ["1", "2", "3"])
    # The user says something, too.
    body[place].append({"role": "user", "content": "be quick"})
    assert rig.send(api, body).text == "result: 1; 2; 3"
    first, second = rig.posts
    assert first.body["prompt_cache_key"] == second.body["prompt_cache_key"]
    assert second.body["input"][-1]["content"] == [{"type": "input_text", "text": "be quick"}]


def test_an_edited_history_is_the_one_that_the_model_sees(rig: Rig, api: Api) -> None:
    """Another output for an earlier call: a thread of its own, with what was sent and nothing else."""
    place = "messages" if api is CHAT else "input"
    body = api.body("", tools=[LOOK])
    body[place] = [{"role": "user", "content": said(loop(2))}]
    first = rig.send(api, body)
    body[place] += given_back(api, first, ["old"])
    second = rig.send(api, body)
    edited = [*body[place][:-1], given_back(api, first, ["new"])[-1], *given_back(api, second, ["more"])]
    assert rig.send(api, body | {place: edited}).text == "done"
    prompt = rig.posts[-1].body
    assert prompt["prompt_cache_key"] not in {post.body["prompt_cache_key"] for post in rig.posts[:-1]}
    assert [item["output"] for item in prompt["input"] if item["type"] == "function_call_output"] == ["new", "more"]


def test_a_loop_that_is_given_up_ends_in_codex(use: UseRig) -> None:
    """A user who says something else instead of sending the outputs is answered in another thread."""
    rig = use(CURRENT, PROXY_TOOL_MODE="native")
    body = RESPONSES.body(said(loop(1)), tools=[LOOK])
    assert rig.send(RESPONSES, body).calls
    items = [{"role": "user", "content": body["input"]}, {"role": "user", "content": "never mind"}]
    assert rig.send(RESPONSES, body | {"input": items}).status == 200
    assert len({post.body["prompt_cache_key"] for post in rig.posts}) == 2


def two_calls(rig: Rig) -> dict[str, Any]:
    """A request whose model has made two calls, ready for their outputs."""
    made = [{"name": "look", "arguments": f'{{"q":"{name}"}}'} for name in "ab"]
    body = RESPONSES.body("", tools=[LOOK])
    body["input"] = [{"role": "user", "content": said({"do": "calls", "calls": made})}]
    answer = rig.send(RESPONSES, body)
    assert len(answer.calls) == 2
    return body | {"input": body["input"] + given_back(RESPONSES, answer, ["1", "2"])}


def test_an_output_that_cannot_be_passed_on_fails_its_own_request(use: UseRig) -> None:
    """Codex asks for the second output when it has the first; whoever is asked then must not fail."""
    rig = use(CURRENT, PROXY_TOOL_MODE="native")
    codex, body = rig.child(), two_calls(rig)
    body["input"][-1]["output"] = [{"type": "input_image", "image_url": "https://example.com/a.png"}]
    assert rig.send(RESPONSES, body).error["code"] == "unsupported_image_url"
    body["input"][-1]["output"] = "2"
    assert rig.send(RESPONSES, body).text == "result: 1; 2"
    assert rig.child() == codex


@pytest.mark.parametrize(
    ("output", "arrives"),
    [
        ("", ""),
        ([], ""),
        ([{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}], "one\ntwo"),
    ],
    ids=["empty", "nothing", "two texts"],
)
def test_an_output_has_the_same_form_in_a_resumed_turn(rig: Rig, output: Any, arrives: str) -> None:
    """As in a new thread."""
    body = two_calls(rig)
    body["input"][-1]["output"] = output
    rig.send(RESPONSES, body)
    first, second = rig.posts
    assert first.body["prompt_cache_key"] == second.body["prompt_cache_key"]
    assert second.body["input"][-1]["output"] == arrives


FORM = {"type": "object", "properties": {}, "additionalProperties": False, "required": []}


@pytest.mark.parametrize(
    ("more", "member", "arrives"),
    [
        ({"reasoning": {"effort": "high"}}, "reasoning", "high"),
        ({"text": {"format": {"type": "json_schema", "name": "f", "schema": FORM, "strict": True}}}, "text", "schema"),
    ],
    ids=["effort", "format"],
)
def test_options_that_change_within_a_loop_count(rig: Rig, more: dict[str, Any], member: str, arrives: str) -> None:
    """A turn that waits for outputs keeps those that it began with, so another turn answers."""
    body = two_calls(rig)
    assert rig.send(RESPONSES, body | more).status == 200
    assert arrives in str(rig.posts[-1].body[member])


def test_outputs_of_other_calls_do_not_resume_a_turn(use: UseRig) -> None:
    """One output twice, and none for the other call: the model is asked at once, in another thread."""
    rig = use(CURRENT, PROXY_TOOL_MODE="native")
    body = two_calls(rig)
    body["input"][-1] = body["input"][-2]
    assert rig.send(RESPONSES, body).status == 200
    assert len({post.body["prompt_cache_key"] for post in rig.posts}) == 2


def test_a_recorded_loop_can_be_replayed(tmp_path: Path, mode: str, api: Api) -> None:
    """Each request of it, byte for byte, although none of them but the first begins a thread."""
    log = tmp_path / "events.ndjson"
    with start_rig(tmp_path, CURRENT, PROXY_TOOL_MODE=mode, PROXY_LOG_EVENTS=str(log)) as rig:
        assert run(rig, api, 3).text == "done"
    done = subprocess.run(
        [sys.executable, "-m", "bridge", "replay", str(log), "--verify"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 the same" in done.stdout + done.stderr
