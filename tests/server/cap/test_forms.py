"""One turn in all forms, over a mock model, a real Codex and a provider's HTTP API; cut anywhere, and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from harness import KEY, RunningBridge, running_bridge
from play import JSON, NDJSON, SSE, Json
from protocols.cap.streams import fold
from real.rig import CURRENT, said, start_rig
from server.prompted import request_headers
from upstream import openai_chat, openai_chat_chunks
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from bridge.ids import new_id
from bridge.protocols.cap.stream import PACKET

PIECES = ["Hello ", "wörld 🌍\n", "", "<b>&</b>", "\u2028", "end."]
THOUGHT = "Hm, well."


@dataclass(frozen=True)
class Place:
    """A bridge with a backend; `query` asks for an answer and makes sure that it comes."""

    bridge: RunningBridge
    model: str
    query: Callable[[], str]
    text: str
    thought: str | None = None

    def body(self) -> Json:
        """A new request."""
        return {
            "request_id": str(uuid4()),
            "context": {"session_id": "s", "user": {"id": "u", "name": "U"}},
            "payload": {"query": self.query(), "meta": {"model": self.model, "events": ["metrics", "reasoning_raw"]}},
        }


@pytest.fixture(scope="module")
def codex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A real Codex, whose provider speaks slowly enough to be cut."""
    text = {"do": "reasoning", "summary": [THOUGHT], "pieces": [piece for piece in PIECES if piece], "delay": 0.02}
    with start_rig(tmp_path_factory.mktemp("codex"), CURRENT) as rig:
        yield Place(rig.bridge, "gpt-5.2", lambda: said(text), "".join(PIECES), THOUGHT)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A provider of chat completions."""
    directory = tmp_path_factory.mktemp("provider")
    with openai_chat.serving_in_thread() as server:
        config = directory / "config.toml"
        backend = f'type = "openai"\nbase_url = "{server.base_url}"\nkey_env = "CHAT_KEY"'
        config.write_text(f'[backends.some]\n{backend}\n[routing.patterns]\nsome = ["some-"]\n')

        def query() -> str:
            thought, text = openai_chat_chunks.reasoning(THOUGHT), openai_chat_chunks.text(*PIECES)
            server.will(openai_chat.stream(openai_chat_chunks.answer(thought, text)))
            return "Say it."

        with running_bridge(directory, PROXY_CONFIG=str(config), CHAT_KEY=server.key or "") as bridge:
            yield Place(bridge, "some-model", query, "".join(PIECES), THOUGHT)


@pytest.fixture(
    params=[
        "stand_in",
        pytest.param("codex", marks=pytest.mark.deep),
        pytest.param("provider", marks=pytest.mark.deep),
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "stand_in":
        bridge = request.getfixturevalue("mock_bridge")
        return Place(bridge, "mock-echo", lambda: "".join(PIECES), "".join(PIECES))
    found: Place = request.getfixturevalue(request.param)
    return found


# Reading


@contextmanager
def answered(bridge: RunningBridge, method: str, path: str, body: Json | None, **headers: str) -> Iterator[Any]:
    """A response that is being read; its connection is closed after the block, wherever it has got to."""
    connection = HTTPConnection("127.0.0.1", bridge.port, timeout=30)
    try:
        given = request_headers(**{name.replace("_", "-"): value for name, value in headers.items()})
        connection.request(method, path, None if body is None else json.dumps(body), given)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield response
    finally:
        connection.close()


def numbered(response: Any, most: int | None = None) -> list[tuple[int, Json]]:
    """The packets of an event stream with their numbers, up to so many."""
    found: list[tuple[int, Json]] = []
    number = 0
    while (most is None or len(found) < most) and (line := response.readline()):
        if line.startswith(b"id: "):
            number = int(line.rpartition(b":")[2])
        elif line.startswith(b"data: "):
            found.append((number, json.loads(line[6:])))
    return found


def lines(response: Any, most: int | None = None) -> list[Json]:
    """The packets of a stream of lines."""
    found: list[Json] = []
    while (most is None or len(found) < most) and (line := response.readline()):
        found.append(json.loads(line))
    return found


@contextmanager
def talking(bridge: RunningBridge, body: Json) -> Iterator[Connection]:
    url = f"ws://127.0.0.1:{bridge.port}/v1/assist/ws"
    with connect(url, additional_headers={"Authorization": f"Bearer {KEY}"}, proxy=None) as socket:
        socket.send(json.dumps(body))
        yield socket


def over_events(place: Place, body: Json) -> list[Json]:
    with answered(place.bridge, "POST", "/v1/assist", body, Accept=SSE) as response:
        found = numbered(response)
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    return [packet for _, packet in found]


def over_lines(place: Place, body: Json) -> list[Json]:
    with answered(place.bridge, "POST", "/v1/assist", body, Accept=NDJSON) as response:
        return lines(response)


def over_socket(place: Place, body: Json) -> list[Json]:
    with talking(place.bridge, body) as socket:
        return [json.loads(message) for message in socket]


def whole(place: Place, body: Json) -> Json:
    with answered(place.bridge, "POST", "/v1/assist", body, Accept=JSON) as response:
        found: Json = json.loads(response.read())
    return found


STREAMS = {"events": over_events, "lines": over_lines, "socket": over_socket}


def folded(packets: list[Json]) -> Json:
    """What a stream comes to, without what is another in each turn."""
    whole = fold(map(PACKET.validate_python, packets))
    return common({"output": whole.output(), "metrics": whole.metrics})


def common(answer: Json) -> Json:
    """Of a whole answer, what is the same in each turn that says the same."""
    output = dict(answer["output"])
    for name in ("conversation_id", "conversation"):
        output.pop(name, None)
    output["reasoning"] = [{**each, "item_id": ""} for each in output.get("reasoning", ())]
    metrics = {name: value for name, value in answer["metrics"].items() if not name.endswith("_ms")}
    return {"output": output, "metrics": metrics}


# The tests


def test_all_forms_give_the_same_turn(place: Place) -> None:
    """Asked four times it is the same answer; asked once and joined in the other forms it is the same packets."""
    asked = {name: read(place, place.body()) for name, read in STREAMS.items()}
    answer = whole(place, place.body())
    assert answer["output"]["text"] == place.text
    assert answer["output"]["status"] == "completed"
    thoughts = [each["thought"] for each in answer["output"].get("reasoning", ())]
    assert thoughts == ([] if place.thought is None else [place.thought])
    assert answer["metrics"]["tokens"] > 0
    for packets in asked.values():
        assert folded(packets) == common(answer)
    body = place.body()
    first = over_events(place, body)
    for read in STREAMS.values():
        assert read(place, body) == first
    joined = whole(place, body)
    assert common(joined) == folded(first) == common(answer)


def test_an_answer_says_whether_its_conversation_is_new(place: Place) -> None:
    """An id of the bridge's own form that it does not know is refused: it would silently begin an empty one."""
    first = whole(place, place.body())["output"]
    assert first["conversation"] == "new"
    going = place.body()
    going["payload"]["conversation_id"] = first["conversation_id"]
    with answered(place.bridge, "POST", "/v1/assist", going, Accept=SSE) as response:
        assert response.headers["x-conversation"] == "continued"
        numbered(response)
    unknown = {**going, "request_id": str(uuid4())}
    unknown["payload"] = {**going["payload"], "conversation_id": new_id("conv")}
    with place.bridge.client() as client:
        refused = client.post("/assist", json=unknown)
    assert (refused.status_code, refused.json()["code"]) == (404, "conversation_not_found")


def test_a_turn_of_only_calls_fails_and_is_not_stored(tmp_path: Path) -> None:
    """A provider whose model calls a tool that it was not offered; the next turn is an ordinary one."""
    config = tmp_path / "config.toml"
    with openai_chat.serving_in_thread() as server:
        backend = f'type = "openai"\nbase_url = "{server.base_url}"\nkey_env = "CHAT_KEY"'
        config.write_text(f'[backends.some]\n{backend}\n[routing.patterns]\nsome = ["some-"]\n')
        call, text = openai_chat_chunks.call("look_up", "{}"), openai_chat_chunks.text("Hello.")
        with running_bridge(tmp_path, PROXY_CONFIG=str(config), CHAT_KEY=server.key or "") as bridge:
            place = Place(bridge, "some-model", lambda: "Hi.", "Hello.")
            for said, status in [((call,), 502), ((text, call), 200), ((text,), 200)]:
                server.will(openai_chat.stream(openai_chat_chunks.answer(*said)))
                body = place.body()
                body["payload"]["conversation_id"] = "c"
                with bridge.client() as client:
                    got = client.post("/assist", json=body)
                assert got.status_code == status, got.text
                if status == 502:
                    assert got.json()["code"] == "empty_response"
                    assert "'look_up'" in got.json()["message"]
        sent = [(each["role"], each["content"]) for each in server.requests[-1].body["messages"]]
        assert sent == [("user", "Hi."), ("assistant", "Hello."), ("user", "Hi.")]


@pytest.mark.parametrize("form", STREAMS)
def test_cut_after_any_packet_nothing_is_lost_or_doubled(place: Place, form: str) -> None:
    """While the turn runs. A socket joins by its request, the others also by the last packet."""
    expected = over_events(place, place.body())
    for count in range(len(expected)):
        body = place.body()
        got = _cut(place, body, form, count)
        assert len(got) == count
        resumed = _resume(place, body, form, count)
        assert _plain(got + resumed) == _plain(expected)
        # What was seen in two parts is what was said.
        assert over_events(place, body) == got + resumed


def _cut(place: Place, body: Json, form: str, count: int) -> list[Json]:
    if form == "socket":
        with talking(place.bridge, body) as socket:
            return [json.loads(socket.recv(timeout=30)) for _ in range(count)]
    accept = SSE if form == "events" else NDJSON
    with answered(place.bridge, "POST", "/v1/assist", body, Accept=accept) as response:
        if form == "events":
            return [packet for _, packet in numbered(response, count)]
        return lines(response, count)


def _resume(place: Place, body: Json, form: str, count: int) -> list[Json]:
    if form == "socket":
        return over_socket(place, body)[count:]
    name = body["request_id"]
    path, last = f"/v1/assist/{name}", f"{name}:{count}"
    accept = SSE if form == "events" else NDJSON
    with answered(place.bridge, "GET", path, None, Accept=accept, Last_Event_ID=last) as response:
        if form == "lines":
            return lines(response)
        found = numbered(response)
    assert [number for number, _ in found] == list(range(count + 1, count + 1 + len(found)))
    return [packet for _, packet in found]


def _plain(packets: list[Json]) -> list[Any]:
    """Packets without what is another in each turn."""
    shown: list[Any] = []
    for packet in packets:
        payload = packet["p"]
        if packet["op"] == "event":
            data = {name: value for name, value in payload["data"].items() if not name.endswith(("_ms", "_id"))}
            payload = [payload["type"], data]
        shown.append([packet["op"], payload])
    return shown
