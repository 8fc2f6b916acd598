"""`serve --replay`: the official client cannot tell a bridge that plays a log from the one that wrote it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from cli.running import run_command
from harness import KEY, RunningBridge
from log.replayed import play_log
from openai import OpenAI
from pydantic import BaseModel
from server.prompted import LOOK, MODEL, ask, ask_chat, open_response
from server.recorded import ended, recording, replaying
from server.talk import Talk, talking

from bridge.log.read import MAX_PLAYED

Json = dict[str, Any]
CALL = '<tool_call>{"name":"look","arguments":"{\\"q\\":\\"tea\\"}"}</tool_call>'
CHAT_LOOK: dict[str, Any] = {"type": "function", "function": {name: LOOK[name] for name in ("name", "parameters")}}


class Weather(BaseModel):
    """What structured output asks for."""

    city: str
    degrees: int


def prompt(*steps: Json) -> str:
    return json.dumps(list(steps))


class Session:
    """Everything that a program may do with the official client, and all that it gets."""

    def __init__(self, bridge: RunningBridge) -> None:
        self.client = OpenAI(base_url=bridge.url, api_key=KEY, max_retries=0)

    def run(self) -> dict[str, Any]:
        """By name, what each call gave."""
        return {name: getattr(self, name)() for name in dir(self) if name.startswith("do_")}

    def do_text(self) -> Any:
        asked = prompt({"deltas": ["Good ", "morning"]}, {"usage": {"input": 9, "output": 4, "cached": 3}})
        return self._responses(input=asked, instructions="Be brief.", temperature=0.5)

    def do_thoughts(self) -> Any:
        return self._responses(input=prompt({"reasoning": ["First.", "Then."]}, {"text": "so"}))

    def do_chat(self) -> Any:
        return self._chat(content=prompt({"deltas": ["Good ", "morning"]}), temperature=0.5)

    def do_chat_calls(self) -> Any:
        return self._chat(content=prompt({"text": CALL, "chunk": 5}), tools=[CHAT_LOOK])

    def do_chat_choices(self) -> Any:
        return self._chat(content=prompt({"text": "a choice"}), n=2)

    def do_tool_loop(self) -> Any:
        """A call, its output, an answer: two requests, the second by the id of the first."""
        asked: Any = {"model": MODEL, "tools": [LOOK]}
        first = self.client.responses.create(input=prompt({"text": f"Hm. {CALL}"}), **asked)
        call = next(item for item in first.output if item.type == "function_call")
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "found"}
        more: Any = [output, {"role": "user", "content": prompt({"text": "There it is."})}]
        second = self.client.responses.create(input=more, previous_response_id=first.id, **asked)
        return [first.model_dump(), second.model_dump()]

    def do_structured(self) -> Any:
        said = prompt({"text": '{"city": "Bern", "degrees": 7}'})
        parsed = self.client.responses.parse(model=MODEL, input=said, text_format=Weather)
        assert parsed.output_parsed == Weather(city="Bern", degrees=7)
        return parsed.model_dump()

    def do_errors(self) -> Any:
        """Of the backend, before and within a stream; of the request."""
        failing = prompt({"error": {"message": "too many", "info": "rateLimitExceeded"}})
        half = prompt({"text": "half"}, {"error": {"message": "it broke"}})
        return [
            self._refused(input=failing),
            self._refused(input=failing, stream=True),
            self._refused(input=half),
            [event.model_dump() for event in self.client.responses.create(model=MODEL, input=half, stream=True)],
            self._refused(input="x", model="no-such-model"),
        ]

    def do_sequence(self) -> Any:
        """The same request gets its answers in the recorded order."""
        asked = prompt({"text": "again"})
        return [self.client.responses.create(model=MODEL, input=asked).model_dump() for _ in range(3)]

    def _responses(self, **asked: Any) -> Any:
        whole = self.client.responses.with_raw_response.create(model=MODEL, **asked)
        with self.client.responses.create(model=MODEL, stream=True, **asked) as stream:
            events = [event.model_dump() for event in stream]
        return _headers(whole.headers), whole.parse().model_dump(), events

    def _chat(self, content: str, **asked: Any) -> Any:
        asked |= {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        whole = self.client.chat.completions.with_raw_response.create(**asked)
        with self.client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **asked
        ) as stream:
            chunks = [chunk.model_dump() for chunk in stream]
        # Which of several choices speaks first is a matter of the moment.
        chunks.sort(key=lambda chunk: chunk["choices"][0]["index"] if chunk["choices"] else 99)
        return _headers(whole.headers), whole.parse().model_dump(), chunks

    def _refused(self, model: str = MODEL, **asked: Any) -> Any:
        with pytest.raises(openai.APIStatusError) as caught:
            self.client.responses.create(model=model, **asked)
        error = caught.value
        return error.status_code, error.body, _headers(error.response.headers)


def _headers(headers: Any) -> Json:
    """What an answer's head says of the answer; its day and its own name are new each time."""
    return {name: value for name, value in headers.items() if name.lower() not in ("date", "x-request-id")}


def talk_over(talk: Talk) -> list[Json]:
    """Over a socket: plainly, in a lane, wrapped, taken in only, and continued."""
    said = [talk.ask(ask({"text": "over a socket"})), talk.ask(ask({"text": "in a lane"}, stream_id="a"))]
    said += [talk.ask({"response": ask({"text": "within"})}), talk.ask(ask({"text": "later"}, generate=False))]
    return [*said, talk.ask(ask({"text": "now"}, previous_response_id=said[-1]["id"]))]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A log, and what the client got while it was written."""
    with recording(tmp_path_factory.mktemp("recorded")) as bridge:
        got = Session(bridge).run()
        with talking(bridge) as talk:
            got["websocket"] = talk_over(talk)
        return ended(bridge), got


@pytest.fixture(scope="module")
def player(session: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge that plays it."""
    with replaying(tmp_path_factory.mktemp("replaying"), session[0]) as bridge:
        yield bridge


def test_the_client_cannot_tell_it_from_the_recorded_bridge(session: tuple[Path, Any], player: RunningBridge) -> None:
    """Every object and event is equal, ids and times too; so are the heads of the answers."""
    now = Session(player).run()
    assert set(now) | {"websocket"} == set(session[1])
    for name, got in now.items():
        assert got == session[1][name], name


async def ask_async(bridge: RunningBridge, **asked: Any) -> list[Json]:
    async with openai.AsyncOpenAI(base_url=bridge.url, api_key=KEY, max_retries=0) as client:
        return [event.model_dump() async for event in await client.responses.create(model=MODEL, stream=True, **asked)]


def test_the_asynchronous_client_gets_the_same(session: tuple[Path, Any], player: RunningBridge) -> None:
    steps = prompt({"reasoning": ["First.", "Then."]}, {"text": "so"})
    # Its last answer was the streamed one, and is given again and again.
    Session(player).do_thoughts()
    for _ in range(2):
        assert asyncio.run(ask_async(player, input=steps)) == session[1]["do_thoughts"][2]


def test_a_whole_answer_can_be_streamed_and_the_reverse(tmp_path: Path) -> None:
    """Whether it is streamed does not make another request of it."""
    with recording(tmp_path) as bridge:
        whole = bridge.post("/responses", ask({"text": "whole"})).json()
        streamed = bridge.events("/responses", ask({"text": "streamed"}))[-1]["response"]
        log = ended(bridge)
    with replaying(tmp_path / "replaying", log) as player:
        assert player.events("/responses", ask({"text": "whole"}))[-1]["response"] == whole
        assert player.post("/responses", ask({"text": "streamed"})).json() == streamed


def test_played_responses_can_be_fetched_and_continued(session: tuple[Path, Any], player: RunningBridge) -> None:
    session_now = Session(player)
    first, second = session_now.do_tool_loop()
    client = session_now.client
    assert client.responses.retrieve(second["id"]).model_dump() == second
    items = client.responses.input_items.list(second["id"]).data
    assert [item.type for item in items][-1] == "message" or items
    assert client.responses.retrieve(first["id"]).id == second["previous_response_id"]
    assert MODEL in [model.id for model in client.models.list()]
    client.responses.delete(first["id"])
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first["id"])


def test_a_websocket_is_answered_too(session: tuple[Path, Any], player: RunningBridge) -> None:
    with talking(player) as talk:
        assert talk_over(talk) == session[1]["websocket"]
        missing = talk.refused(ask({"text": "never said"}))
        assert (missing["status"], missing["error"]["code"]) == (404, "no_recording")


def test_twenty_clients_at_once_get_their_own_answers(tmp_path: Path) -> None:
    asked = [ask({"text": f"number {number}", "chunk": 3}) for number in range(20)]
    with recording(tmp_path) as bridge:
        then = [bridge.events("/responses", body) for body in asked]
        log = ended(bridge)
    with replaying(tmp_path / "replaying", log) as player, ThreadPoolExecutor(20) as pool:
        now = list(pool.map(lambda body: player.events("/responses", body), asked))
    assert now == then


def test_a_secret_in_a_request_does_not_keep_it_from_being_found(tmp_path: Path) -> None:
    """It is not in the log; its mark is, and another secret is another request."""
    secret = "sk-" + "a1b2c3d4" * 4
    body = ask({"text": "thanks"}, instructions=f"Use {secret}.", store=False)
    with recording(tmp_path) as bridge:
        then = bridge.post("/responses", body).json()
        log = ended(bridge)
    assert secret not in log.read_text()
    with replaying(tmp_path / "replaying", log) as player:
        assert player.post("/responses", body).json() == then
        told = missed(player, body | {"instructions": f"Use {secret[::-1]}-sk-{'f' * 32}."})
        assert secret not in told


# Requests that are not in the log


@pytest.fixture(scope="module")
def small_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of three requests."""
    with recording(tmp_path_factory.mktemp("small")) as bridge:
        bridge.post("/responses", ask({"text": "one"}, instructions="Be brief."))
        bridge.post("/responses", ask({"text": CALL}, tools=[LOOK], metadata={"day": "monday"}))
        bridge.post("/chat/completions", ask_chat({"text": "two"}, tools=[CHAT_LOOK]))
        return ended(bridge)


def test_the_recorded_quota_is_sent_again(small_log: Path, tmp_path: Path) -> None:
    """The last that the child had told before the request; also in a log of what was played."""
    header, *rest = small_log.read_text().splitlines()
    told = {"rateLimits": {"primary": {"usedPercent": 12.5, "windowDurationMins": 300, "resetsAt": 1794900000}}}
    limits = json.loads(header) | {
        "phase": "backend_io",
        "kind": "rpc_notification",
        "method": "account/rateLimits/updated",
        "payload": {"params": told},
    }
    log, again = tmp_path / "log.ndjson", tmp_path / "again.ndjson"
    log.write_text("\n".join([header, json.dumps(limits), *rest]) + "\n")
    body = ask({"text": "one"}, instructions="Be brief.")
    for number, source in enumerate((log, again)):
        with replaying(tmp_path / str(number), source, "--log-events", str(again)) as player:
            headers = player.post("/responses", body).headers
            assert headers["x-codex-primary-used-percent"] == "12.5"
            assert headers["x-codex-primary-reset-at"] == "1794900000"


def missed(bridge: RunningBridge, body: Json, path: str = "/responses") -> str:
    """The message of a request that is not in the log."""
    response = bridge.post(path, body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (404, "no_recording", "invalid_request_error")
    return str(error["message"])


def test_a_miss_tells_what_differs(small_log: Path, tmp_path: Path) -> None:
    """The nearest recording, the place, what is there and what was."""
    with replaying(tmp_path / "a", small_log) as player:
        told = missed(player, ask({"text": "one"}, instructions="Be verbose."))
        assert 'instructions: recorded "Be brief.", received "Be verbose."' in told
        assert "The nearest is req_" in told
        assert "--ignore MEMBER or --on-miss nearest|forward" in told
        told = missed(player, ask({"text": "one"}))
        assert 'instructions: recorded "Be brief.", received nothing' in told
        told = missed(player, ask({"text": CALL}, tools=[LOOK | {"name": "peek"}]))
        assert 'tools.0.name: recorded "look", received "peek"' in told
        renamed = {"type": "function", "function": CHAT_LOOK["function"] | {"name": "peek"}}
        told = missed(player, ask_chat({"text": "two"}, tools=[renamed]), "/chat/completions")
        assert 'tools.0.function.name: recorded "look", received "peek"' in told
        told = missed(player, ask({"text": "one"}, instructions="Be brief.", tools=[LOOK], reasoning={"effort": "low"}))
        assert "recorded nothing" in told
        # What says nothing to the model makes no difference.
        body = ask({"text": "one"}, instructions="Be brief.", metadata={"a": "b"}, user="u", temperature=None)
        assert player.post("/responses", body).status_code == 200


def test_ignored_paths_are_not_compared(small_log: Path, tmp_path: Path) -> None:
    with replaying(
        tmp_path / "a", small_log, "--ignore", "instructions", "--ignore", "tools.*.name", "--ignore", "temperature"
    ) as player:
        assert player.post("/responses", ask({"text": "one"}, instructions="Be verbose.")).status_code == 200
        assert player.post("/responses", ask({"text": "one"}, temperature=1)).status_code == 200
        assert player.post("/responses", ask({"text": CALL}, tools=[LOOK | {"name": "peek"}])).status_code == 200
        missed(player, ask({"text": CALL}, tools=[LOOK | {"parameters": {"type": "object"}}]))


def test_on_miss_nearest_plays_the_nearest(small_log: Path, tmp_path: Path) -> None:
    with replaying(tmp_path / "a", small_log, "--on-miss", "nearest") as player:
        answer = player.post("/responses", ask({"text": "one"}, instructions="Be kind.")).json()
        assert answer["output"][0]["content"][0]["text"] == "one"
        assert answer["instructions"] == "Be kind."
        told = player.stderr.read_text()
        assert "no recorded request equals this one" in told
        assert 'received "Be kind."' in told


def test_on_miss_forward_answers_live_and_records(small_log: Path, tmp_path: Path) -> None:
    """--on-miss forward with --log-events: a log that holds both replays again, and answers both without anybody."""
    new = {"model": "mock-echo", "input": "something new"}
    log = tmp_path / "new.ndjson"
    with replaying(
        tmp_path / "a", small_log, "--on-miss", "forward", "--mock-only", "--log-events", str(log)
    ) as player:
        live = player.post("/responses", new).json()
        played = player.post("/responses", ask({"text": "one"}, instructions="Be brief.")).json()
        again = player.post("/responses", new).json()
    assert live["output"][0]["content"][0]["text"] == "something new"
    assert live["id"] != again["id"]
    play_log(log)
    with replaying(tmp_path / "b", log) as player:
        assert player.post("/responses", new).json() == live
        assert player.post("/responses", new).json() == again
        assert player.post("/responses", ask({"text": "one"}, instructions="Be brief.")).json() == played


# Leaving


def test_a_client_can_disconnect_and_cancel(tmp_path: Path) -> None:
    """Nothing is left of it, and the next client gets all of it."""
    body = ask({"text": "a"}, {"sleep": 3}, {"text": "b"})
    with recording(tmp_path) as bridge:
        whole = bridge.events("/responses", body)
        log = ended(bridge)
    with replaying(tmp_path / "replaying", log, "--speed", "1", PROXY_GRACE="5") as player:
        connection, response = open_response(player, "/v1/responses", body | {"stream": True})
        assert response.read(40)
        response.close()
        connection.close()
        client = OpenAI(base_url=player.url, api_key=KEY, max_retries=0)
        kinds = []
        with client.responses.create(**body, stream=True) as stream:
            for event in stream:
                kinds.append(event.type)
                if event.type == "response.output_text.delta":
                    assert client.responses.cancel(whole[0]["response"]["id"]).status == "cancelled"
        assert kinds[-1] != "response.completed"
        assert player.events("/responses", body) == whole
        began = time.monotonic()
        assert player.stop() == 0
        assert time.monotonic() - began < 12


# What cannot be played


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "does not exist"),
        (b"", "contains no request that can be replayed"),
        (b"no log\n{}\n[]\n", "contains no request that can be replayed"),
    ],
)
def test_a_log_without_requests_is_rejected_at_once(tmp_path: Path, content: bytes | None, told: str) -> None:
    log = tmp_path / "log.ndjson"
    if content is not None:
        log.write_bytes(content)
    ran = run_command("serve", "--replay", log, "--port", "0")
    assert ran.returncode == 2
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_log_that_is_too_large_is_rejected_before_it_is_read(tmp_path: Path) -> None:
    """By whoever would hold it in memory; the file is large, and on the disk there is nothing of it."""
    log = tmp_path / "log.ndjson"
    with log.open("wb") as file:
        file.truncate(MAX_PLAYED + 1)
    for command in ("serve", "app-server"):
        ran = run_command(command, "--replay", log, PORT="0")
        assert ran.returncode == 2
        assert "268,435,457 bytes, more than the 268,435,456 that can be played" in ran.stderr
        assert "log redact --since" in ran.stderr


@pytest.mark.parametrize("option", [("--on-miss", "nearest"), ("--speed", "1"), ("--ignore", "instructions")])
def test_replay_options_require_a_log(option: tuple[str, str]) -> None:
    ran = run_command("serve", *option, "--mock-only", "--port", "0")
    assert ran.returncode == 2
    assert f"{option[0]} requires --replay." in ran.stderr


def test_an_invalid_choice_names_its_flag(tmp_path: Path) -> None:
    ran = run_command("serve", "--replay", tmp_path, "--on-miss", "foo")
    assert ran.returncode == 2
    assert "--on-miss foo: choose one of error, forward, nearest" in ran.stderr


def test_a_compaction_is_not_played(small_log: Path, tmp_path: Path) -> None:
    """Also not the nearest of other requests; live it can be had."""
    body = {"model": "mock-text", "input": "hi"}
    with replaying(tmp_path / "a", small_log, "--on-miss", "nearest") as player:
        assert missed(player, body, "/responses/compact") == "Answers of /v1/responses/compact cannot be replayed."
    with replaying(tmp_path / "b", small_log, "--on-miss", "forward", "--mock-only") as player:
        assert player.post("/responses/compact", body).status_code == 200


def test_a_call_of_a_tool_that_is_not_offered_is_reported(small_log: Path, tmp_path: Path) -> None:
    """It is played as text: nobody could answer it."""
    with replaying(tmp_path / "a", small_log, "--ignore", "tools.*.name") as player:
        player.post("/responses", ask({"text": CALL}, tools=[LOOK]))
        assert "does not offer" not in player.stderr.read_text()
        player.post("/responses", ask({"text": CALL}, tools=[LOOK | {"name": "peek"}]))
        assert "is played, but calls look, which this request does not offer" in player.stderr.read_text()
