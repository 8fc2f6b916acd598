"""A real Codex behind the bridge: the client's functions as native tools and as text, with the same answers."""

from __future__ import annotations

import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import pytest
from real.provider import USAGE
from real.rig import CHAT, CURRENT, LEGACY, LOOK, RESPONSES, Answer, Api, Rig, UseRig, said, start_rig
from server.prompted import EventLog, wait_for

NATIVE: dict[str, Any] = {"PROXY_TOOL_MODE": "native"}
USED = tuple(USAGE.values())


@pytest.fixture(params=["native", "text"])
def mode(request: pytest.FixtureRequest) -> str:
    """Both ways to offer tools."""
    return str(request.param)


@pytest.fixture
def codex(mode: str, use: UseRig) -> Rig:
    """A Codex that is offered tools in either way."""
    return use(CURRENT, PROXY_TOOL_MODE=mode)


@pytest.fixture
def native(use: UseRig) -> Rig:
    """A Codex that is offered tools natively."""
    return use(CURRENT, **NATIVE)


def function(name: str, **parameters: Any) -> dict[str, Any]:
    """A function of the client's that takes anything."""
    return {"name": name, "parameters": parameters or {"type": "object", "properties": {}}}


def calls(*made: tuple[str, str], **more: Any) -> dict[str, Any]:
    """The script of a model that makes these calls."""
    return {"do": "calls", "calls": [{"name": name, "arguments": arguments} for name, arguments in made], **more}


def with_usage(api: Api, stream: bool) -> dict[str, Any]:
    """What makes an answer of either kind tell its usage."""
    return {"stream_options": {"include_usage": True}} if stream and api is CHAT else {}


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items without the ids that Codex gives them."""
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


def offered(rig: Rig) -> list[str]:
    """The tools that the provider was shown in the last request."""
    return [tool.get("name", tool["type"]) for tool in rig.posts[-1].body["tools"]]


def developer_text(rig: Rig) -> str:
    """What the model was told as its developer's words in the last request."""
    items = [item for item in rig.posts[-1].body["input"] if item.get("role") == "developer"]
    return "\n".join(part["text"] for item in items for part in item["content"])


# Calls


def test_one_call(codex: Rig, api: Api, stream: bool) -> None:
    """A call arrives with its name, its arguments and the usage; the model was asked once."""
    action = calls(("look", '{"q":"tea"}'))
    answer = codex.ask(api, action, stream=stream, tools=[LOOK], **with_usage(api, stream))
    assert answer.calls == (("look", '{"q":"tea"}'),)
    assert (answer.text, answer.end, answer.usage, answer.error) == ("", api.called, USED, {})
    assert len(codex.posts) == 1


def test_three_calls_on_a_slow_stream(codex: Rig, api: Api, stream: bool) -> None:
    """All of them arrive, in order, each with an id of its own, although Codex asks for results after the first."""
    made = [("look", '{"q":"%s"}' % ("x" * number)) for number in (1, 20, 3)]
    action = calls(*made, chunk=6, delay=0.05)
    answer = codex.ask(api, action, stream=stream, tools=[LOOK], **with_usage(api, stream))
    assert answer.calls == tuple(made)
    assert len(set(answer.call_ids)) == 3
    assert (answer.end, answer.usage) == (api.called, USED)
    assert len(codex.posts) == 1


def test_text_and_calls_in_one_answer(codex: Rig, api: Api, stream: bool) -> None:
    """The text stands before the calls, and neither is lost."""
    action = calls(("look", "{}"), ("look", '{"q":"b"}'), pieces=["One ", "moment."], chunk=4)
    answer = codex.ask(api, action, stream=stream, tools=[LOOK])
    assert (answer.text, answer.calls) == ("One moment.", (("look", "{}"), ("look", '{"q":"b"}')))
    assert answer.end == api.called
    if api is RESPONSES:
        kinds = [item["type"] for item in answer.raw["output"]]
        assert kinds == ["message", "function_call", "function_call"]


def test_reasoning_then_a_call(codex: Rig, stream: bool) -> None:
    """The reasoning is an item of its own before the call, and ends before it."""
    action = calls(("look", "{}"), summary=["I should ", "look."], chunk=5)
    answer = codex.ask(RESPONSES, action, stream=stream, tools=[LOOK])
    thought, call = answer.raw["output"]
    assert [part["text"] for part in thought["summary"]] == ["I should ", "look."]
    assert "encrypted_content" not in thought
    assert (call["type"], call["name"]) == ("function_call", "look")
    assert codex.ask(CHAT, action, stream=stream, tools=[LOOK]).reasoning == "I should \n\nlook."


def test_calls_are_streamed_as_they_are_made(native: Rig) -> None:
    """The first call is with the client while the model still writes the second one."""
    action = calls(("look", "{}"), ("look", '{"q":"%s"}' % ("x" * 400)), chunk=2, delay=0.1)
    left = len(native.provider.gone)
    with native.calling(RESPONSES, action, tools=[LOOK]) as connection:
        read_a_call(connection.getresponse())
        assert native.provider.active == 1
    native.provider.wait_gone(left + 1)


ARGUMENTS = {
    "order and white space": '{ "z": 1,\t"a" : [ 1.50, 1e3 ] ,\n "m":{} }',
    "unicode": '{"q":"Grüße 世界 🌍 \\u00e9 \\ud83d\\ude00 \u2028"}',
    "20 kB": '{"q":"%s"}' % ("lorem ipsum " * 1700),
    "nothing": "{}",
    "escapes": '{"q":"\\\\ \\" \\n </tool_call> <b>"}',
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_are_exact(codex: Rig, api: Api, stream: bool, arguments: str) -> None:
    """Whatever JSON the model writes, the client gets it byte for byte."""
    answer = codex.ask(api, calls(("look", arguments)), stream=stream, tools=[LOOK])
    assert answer.calls == (("look", arguments),)
    assert (answer.text, answer.end) == ("", api.called)


@pytest.mark.parametrize("arguments", ["{broken", '{"a":1}{"b":2}', '"a text"', "[1]", "null"])
def test_arguments_that_are_no_object_are_the_clients_to_judge(
    native: Rig, api: Api, stream: bool, arguments: str
) -> None:
    """Codex would answer the model itself and ask it again; the client gets the call as it was made.

    Codex does not wait for anybody then: others may have begun before the turn is cut, few but on a slow machine.
    """
    answer = native.ask(api, calls(("look", arguments)), stream=stream, tools=[LOOK])
    assert answer.calls == (("look", arguments),)
    assert answer.end == api.called
    assert 1 <= len(native.posts) <= 5


@pytest.mark.parametrize("arguments", ["{}", ""])
def test_a_function_without_parameters(codex: Rig, api: Api, stream: bool, arguments: str) -> None:
    """It needs no schema; a model that writes nothing for its arguments means none."""
    answer = codex.ask(api, calls(("now", arguments)), stream=stream, tools=[{"name": "now"}])
    assert answer.calls == (("now", "{}"),)


def test_a_model_that_calls_nothing_answers(codex: Rig, api: Api, stream: bool) -> None:
    """With tools on offer a text is still a text, in one model call."""
    answer = codex.ask(api, {"do": "text", "pieces": ["no need"]}, stream=stream, tools=[LOOK])
    assert (answer.text, answer.calls, answer.end) == ("no need", (), api.done)
    assert len(codex.posts) == 1


def test_a_tag_is_text_where_calls_are_native(native: Rig, api: Api, stream: bool) -> None:
    """Nothing in the text is taken for a call, and nothing of it is lost."""
    text = '<tool_call>{"name":"look","arguments":"{}"}</tool_call>'
    answer = native.ask(api, {"do": "text", "pieces": [text], "chunk": 3}, stream=stream, tools=[LOOK])
    assert (answer.text, answer.calls, answer.end) == (text, (), api.done)


# Names

OWN = ("exec_command", "shell", "apply_patch", "web_search", "update_plan")


@pytest.mark.parametrize("name", [*OWN, "view_image", "request_user_input", "mcp", "mcp__files__read"])
def test_a_function_with_a_name_of_codex_own(codex: Rig, mode: str, api: Api, stream: bool, name: str) -> None:
    """The client gets the call under its own name, and Codex runs nothing: the model is asked once."""
    arguments = '{"cmd":"true", "input":"*** Begin Patch"}'
    answer = codex.ask(api, calls((name, arguments)), stream=stream, tools=[function(name)])
    assert answer.calls == ((name, arguments),)
    assert answer.end == api.called
    assert len(codex.posts) == 1
    assert offered(codex) == ([f"client_{name}"] if mode == "native" else [])


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("files.read", "files_read"),
        ("ns:tool", "ns_tool"),
        ("a.b:c-d_e", "a_b_c-d_e"),
        ("x" * 100, "x" * 64),
        ("mcp__" + "y" * 100, "client_mcp__" + "y" * 52),
    ],
)
def test_a_name_that_the_provider_would_refuse(codex: Rig, mode: str, api: Api, name: str, wire: str) -> None:
    """It is offered under one that is allowed, and comes back as it was."""
    said_name = wire if mode == "native" else name
    answer = codex.ask(api, calls((said_name, "{}")), stream=True, tools=[function(name)])
    assert answer.calls == ((name, "{}"),)
    assert offered(codex) == ([wire] if mode == "native" else [])


def test_names_that_would_be_the_same(native: Rig, api: Api) -> None:
    """Each call comes back to the function that was called."""
    names = ["a.b", "a:b", "a_b", "shell", "client_shell"]
    wire = ["a_b", "a_b_2", "a_b_3", "client_shell", "client_shell_2"]
    answer = native.ask(api, calls(*[(name, "{}") for name in wire]), tools=[function(name) for name in names])
    assert offered(native) == wire
    assert [name for name, _ in answer.calls] == names


def test_namespaces(codex: Rig, mode: str, stream: bool) -> None:
    """A function of a namespace is told apart from its namesake, and comes back with its namespace."""
    tools = [
        {"type": "namespace", "name": space, "description": "x", "tools": [{"type": "function", **LOOK}]}
        for space in ("crm", "shop")
    ]
    names = ["crm__look", "shop__look"] if mode == "native" else ["crm.look", "shop.look"]
    body = RESPONSES.body(said(calls((names[1], '{"q":1}'), (names[0], "{}")))) | {"tools": tools}
    answer = codex.send(RESPONSES, body, stream=stream)
    assert [(item["namespace"], item["name"], item["arguments"]) for item in answer.raw["output"]] == [
        ("shop", "look", '{"q":1}'),
        ("crm", "look", "{}"),
    ]
    if mode == "native":
        assert offered(codex) == names


# Custom tools


def custom(api: Api) -> list[dict[str, Any]]:
    """A custom tool with a grammar, in the endpoint's spelling."""
    tool = {
        "name": "patch",
        "description": "Edits files",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: LINE+"},
    }
    return [{"type": "custom", **tool} if api is RESPONSES else {"type": "custom", "custom": tool}]


def test_a_custom_tool(codex: Rig, mode: str, api: Api, stream: bool) -> None:
    """It gets its text, not JSON; the model is shown a function of one text, and the grammar in words."""
    text = '*** Begin Patch\n+ "quoted" ü\n'
    body = api.body(said(calls(("patch", json.dumps({"input": text}))))) | {"tools": custom(api)}
    answer = codex.send(api, body, stream=stream)
    assert answer.calls == (("patch", text),)
    assert answer.end == api.called
    if api is RESPONSES:
        assert answer.raw["output"][0]["type"] == "custom_tool_call"
        assert answer.raw["output"][0]["id"].startswith("ctc_")
    if mode == "native":
        (tool,) = codex.posts[-1].body["tools"]
        assert "lark grammar:\nstart: LINE+" in tool["description"]
        assert list(tool["parameters"]["properties"]) == ["input"]


def test_a_custom_tools_earlier_calls(codex: Rig, mode: str) -> None:
    """The provider sees its own kind of call; natively that of the function which the tool is offered as."""
    history = [
        {"role": "user", "content": "go"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "one\ntwo"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "patched"},
        {"role": "user", "content": "next"},
    ]
    body = codex.prompt_of(RESPONSES, {"model": "gpt-5.2", "input": history, "tools": custom(RESPONSES)})
    call, output = without_ids(body["input"])[-3:-1]
    if mode == "native":
        assert call == {
            "type": "function_call",
            "call_id": "c1",
            "name": "patch",
            "arguments": '{"input":"one\\ntwo"}',
        }
        assert output == {"type": "function_call_output", "call_id": "c1", "output": "patched"}
    else:
        assert call == {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "one\ntwo"}
        assert output == {"type": "custom_tool_call_output", "call_id": "c1", "output": "patched"}


# The choice


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("required", "You must call at least one of the functions."),
        ("named", "You must call the function client_shell."),
    ],
)
def test_a_choice_is_told_to_the_model(native: Rig, api: Api, choice: str, text: str) -> None:
    """Codex leaves every choice to the model, so the model is asked."""
    named = {"name": "shell"} if api is RESPONSES else {"function": {"name": "shell"}}
    wanted: Any = {"type": "function", **named} if choice == "named" else choice
    answer = native.ask(api, calls(("shell", "{}")), tools=[LOOK, function("shell")], tool_choice=wanted)
    assert answer.calls == (("shell", "{}"),)
    assert developer_text(native) == text


def test_with_the_choice_none_nothing_can_be_called(codex: Rig, mode: str, api: Api, stream: bool) -> None:
    """Natively nothing is even offered; earlier calls stay in the history."""
    answer = codex.ask(api, {"do": "text", "pieces": ["fine"]}, stream=stream, tools=[LOOK], tool_choice="none")
    assert (answer.text, answer.calls, answer.end) == ("fine", (), api.done)
    assert offered(codex) == []
    if mode == "native":
        assert developer_text(codex) == ""
    block = '<tool_call>{"name":"look","arguments":"{}"}</tool_call>'
    answer = codex.ask(api, {"do": "text", "pieces": [block]}, stream=stream, tools=[LOOK], tool_choice="none")
    assert (answer.text, answer.calls) == (block, ())


def test_one_call_at_a_time(codex: Rig, mode: str, api: Api, stream: bool) -> None:
    """With parallel_tool_calls=false the client gets the first of the model's calls alone."""
    action = calls(("look", '{"q":"1"}'), ("look", '{"q":"2"}'))
    answer = codex.ask(api, action, stream=stream, tools=[LOOK], parallel_tool_calls=False, **with_usage(api, stream))
    assert answer.calls == (("look", '{"q":"1"}'),)
    assert (answer.end, answer.usage) == (api.called, USED)
    if mode == "text":
        assert "at most one <tool_call>" in developer_text(codex)


# The history


def conversation(api: Api, first: Answer, body: dict[str, Any], outputs: list[str]) -> dict[str, Any]:
    """The next request of a client that has run the calls of an answer."""
    if api is CHAT:
        results = [
            {"role": "tool", "tool_call_id": call_id, "content": output}
            for call_id, output in zip(first.call_ids, outputs, strict=True)
        ]
        return body | {"messages": [*body["messages"], first.raw["choices"][0]["message"], *results]}
    given = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    items = [
        {"type": "function_call_output", "call_id": call_id, "output": output}
        for call_id, output in zip(first.call_ids, outputs, strict=True)
    ]
    return body | {"input": [*given, *first.raw["output"], *items]}


def test_the_whole_loop(codex: Rig, mode: str, api: Api) -> None:
    """Two rounds of calls, each answered under the ids that they came with, then the text; one model call each."""
    last = {"do": "text", "pieces": ["all done"]}
    second = calls(("files.read", '{"n": 3}'), then=last)
    first = calls(("shell", '{"n": 1}'), ("look", '{"n": 2}'), pieces=["Let me see."], then=second)
    tools = [function("shell"), LOOK, function("files.read")]
    body = api.body(said(first), tools=tools)
    answer = codex.send(api, body)
    assert answer.calls == (("shell", '{"n": 1}'), ("look", '{"n": 2}'))
    body = conversation(api, answer, body, ["one", "two"])
    again = codex.send(api, body)
    assert again.calls == (("files.read", '{"n": 3}'),)
    body = conversation(api, again, body, ["three"])
    final = codex.send(api, body)
    assert (final.text, final.calls, final.end) == ("all done", (), api.done)
    assert len(codex.posts) == 3
    shown = without_ids(codex.posts[-1].body["input"])
    names = ["client_shell", "look", "files_read"] if mode == "native" else ["shell", "look", "files_read"]
    made = [item for item in shown if item["type"] == "function_call"]
    assert [(item["name"], item["arguments"]) for item in made] == list(
        zip(names, ['{"n": 1}', '{"n": 2}', '{"n": 3}'], strict=True)
    )
    results = [item for item in shown if item["type"] == "function_call_output"]
    assert [item["output"] for item in results] == ["one", "two", "three"]
    assert [item["call_id"] for item in results] == [item["call_id"] for item in made]


def test_each_answer_counts_its_own_tokens(codex: Rig, api: Api) -> None:
    """A text, a call, the answer to its result: whichever thread they run in, each costs what it cost."""
    place = "messages" if api is CHAT else "input"
    body = api.body("", tools=[LOOK])
    body[place] = [{"role": "user", "content": said({"do": "text", "pieces": ["hi"]})}]
    first = codex.send(api, body)
    body[place] += [
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": said(calls(("look", "{}")))},
    ]
    second = codex.send(api, body)
    third = codex.send(api, conversation(api, second, body, ["seen"]))
    assert (first.text, second.calls, third.text) == ("hi", (("look", "{}"),), "result: seen")
    assert [first.usage, second.usage, third.usage] == [USED] * 3
    roles = [item.get("role", item["type"]) for item in codex.posts[-1].body["input"]]
    # A call in text stands in the thread as the model wrote it, too.
    wrote = [] if any(tool.get("name") == "look" for tool in codex.posts[-1].body["tools"]) else ["assistant"]
    assert [role for role in roles if role != "developer"] == [
        "user",
        "assistant",
        "user",
        *wrote,
        "function_call",
        "function_call_output",
    ]


def test_twenty_conversations_at_once(native: Rig) -> None:
    """Each client gets its own calls, and its own answer to their results."""

    def talk(number: int) -> None:
        api = (RESPONSES, CHAT)[number % 2]
        made = [("look", f'{{"q":"{number}/{call}"}}') for call in range(3)]
        body = api.body(said(calls(*made, chunk=4, delay=0.01)), tools=[LOOK])
        first = native.send(api, body)
        assert first.calls == tuple(made)
        final = native.send(api, conversation(api, first, body, [f"{number}-{call}" for call in "abc"]))
        assert final.text == f"result: {number}-a; {number}-b; {number}-c"

    native.provider.crowd = native.since + 20
    with ThreadPoolExecutor(20) as pool:
        for done in [pool.submit(talk, number) for number in range(20)]:
            done.result(60)
    assert len(native.posts) == 40


# The end of a turn


def read_a_call(response: Any) -> None:
    """Read a stream up to the first call that is complete."""
    assert response.status == 200
    while b"response.function_call_arguments.done" not in (line := response.readline()):
        assert line, "the stream ended without a call"


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_leaves_while_calls_are_open(native: Rig, stream: bool) -> None:
    """Codex waits for results that never come: the model's work is stopped, and the next request works."""
    action = calls(("look", "{}"), ("look", '{"q":"%s"}' % ("x" * 1000)), chunk=2, delay=0.05)
    left = len(native.provider.gone)
    with native.calling(RESPONSES, action, stream=stream, tools=[LOOK]) as connection:
        if stream:
            read_a_call(connection.getresponse())
    assert native.provider.wait_gone(left + 1)[left:] == [native.since]
    assert native.ask(RESPONSES, calls(("look", '{"q":1}')), tools=[LOOK]).calls == (("look", '{"q":1}'),)
    assert len(native.posts) == 2


def test_cut_turns_leave_nothing_behind(tmp_path: Path) -> None:
    """Turns whose outputs never come: the next ones are as quick, and Codex has closed all threads but those kept."""
    log = EventLog(tmp_path / "events.ndjson")
    with start_rig(tmp_path, CURRENT, PROXY_LOG_EVENTS=str(log.path), PROXY_KEPT_THREADS="2", **NATIVE) as rig:

        def seconds() -> float:
            before = monotonic()
            assert rig.ask(RESPONSES, calls(("look", "{}"), ("look", "{}")), tools=[LOOK]).calls
            return monotonic() - before

        def events() -> Counter[str]:
            return Counter(str(record.get("method")) for record in log.records())

        def os_threads() -> int:
            return len(os.listdir(f"/proc/{rig.child()}/task"))

        seconds()
        at_first = [seconds() for _ in range(5)]
        threads = os_threads()
        for _ in range(25):
            seconds()
        in_the_end = [seconds() for _ in range(5)]
        assert median(in_the_end) < 3 * median(at_first) + 1
        wait_for(lambda: events()["thread/closed"] == 34, "all threads but two are closed")
        # Codex ends its idle threads a few seconds after their last work.
        wait_for(lambda: os_threads() <= threads + 8, "the threads of the process have ended")
        assert len(rig.provider.requests) == 36


def test_a_stream_that_breaks_after_a_call(tmp_path: Path) -> None:
    """Codex says nothing of it while it waits for the call's result: the silence ends the turn, as a failure."""
    with start_rig(tmp_path, CURRENT, PROXY_IDLE_TIMEOUT="3", **NATIVE) as rig:
        answer = rig.ask(RESPONSES, calls(("look", "{}")) | {"do": "drop"}, tools=[LOOK])
        assert (answer.status, answer.error["code"]) == (504, "backend_timeout")
        assert rig.ask(RESPONSES, calls(("look", "{}")), tools=[LOOK]).calls == (("look", "{}"),)


def test_a_retried_stream_gives_no_call_twice(use: UseRig, api: Api, stream: bool) -> None:
    """What the broken stream called is void: a whole answer has the new one's calls alone, a streamed one fails."""
    rig = use(CURRENT, retries=2, **NATIVE)
    broken = f"{{broken, for {api}, {stream}"
    new = (("look", '{"q":1}'), ("look", '{"q":2}'))
    action = calls(("look", broken), then=calls(*new)) | {"do": "drop", "times": 1}
    answer = rig.ask(api, action, tools=[LOOK], stream=stream)
    if stream:
        assert answer.error["code" if api is CHAT else "bridge_code"] == "stream_interrupted"
    else:
        assert answer.calls == new


def test_a_schema_that_codex_refuses_is_told(native: Rig, api: Api, stream: bool) -> None:
    """400 with its words, instead of a failure that a client would try again."""
    bad = function("look", type="object", properties={"a": {"type": "array", "items": [{"type": "string"}]}})
    answer = native.ask(api, "hi", stream=stream, tools=[bad])
    assert (answer.status, answer.error["param"]) == (400, "tools")
    assert "input schema is not supported for look" in answer.error["message"]
    assert native.posts == []


# Codex's own tools beside the client's


def test_the_clients_tools_beside_codex_own(tmp_path: Path) -> None:
    """--native-tools: the client's exec_command goes to the client; Codex's own still works, and is told apart."""
    settings = {"PROXY_NATIVE_TOOLS": "true", "PROXY_SANDBOX_MODE": "danger-full-access", **NATIVE}
    with start_rig(tmp_path, CURRENT, **settings) as rig:

        def touch(name: str) -> str:
            return json.dumps({"cmd": f"touch {tmp_path / name}"})

        tools = [LOOK, function("exec_command")]
        answer = rig.ask(RESPONSES, calls(("client_exec_command", touch("clients"))), tools=tools)
        assert answer.calls == (("exec_command", touch("clients")),)
        assert len(rig.posts) == 1
        assert {"exec_command", "client_exec_command", "look"} <= set(offered(rig))

        action = calls(("exec_command", touch("codex")), then=calls(("look", "{}")))
        answer = rig.ask(RESPONSES, action, tools=tools)
        assert answer.calls == (("look", "{}"),)
        assert answer.usage == tuple(2 * count for count in USED)
        assert len(rig.posts) == 3
        assert ((tmp_path / "codex").exists(), (tmp_path / "clients").exists()) == (True, False)


def test_without_them_codex_runs_nothing(tmp_path: Path) -> None:
    """Not even where nothing would hold it back."""
    with start_rig(tmp_path, CURRENT, PROXY_SANDBOX_MODE="danger-full-access", **NATIVE) as rig:
        for name in ("exec_command", "shell"):
            arguments = json.dumps({"cmd": f"touch {tmp_path / name}", "command": ["touch", str(tmp_path / name)]})
            answer = rig.ask(RESPONSES, calls((name, arguments)), tools=[function(name)])
            assert answer.calls == ((name, arguments),)
            assert not (tmp_path / name).exists()
        assert len(rig.posts) == 2


def test_a_codex_without_native_tools_gets_them_in_text(use: UseRig, api: Api, stream: bool) -> None:
    """0.107 is asked in the only way that it knows."""
    rig = use(LEGACY, **NATIVE)
    answer = rig.ask(api, calls(("look", '{"q":1}')), stream=stream, tools=[LOOK])
    assert answer.calls == (("look", '{"q":1}'),)
    assert "no native tools" in rig.bridge.stderr.read_text()
