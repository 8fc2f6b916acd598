"""A real Codex behind the bridge: clients that leave, a child that dies, and the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from shlex import quote
from time import monotonic
from typing import Any

import pytest
from real import codex_binaries
from real.rig import CHAT, CURRENT, HEADERS, LEGACY, RESPONSES, Api, Rig, Target, UseRig, processes, said, start_rig

from bridge.appserver.supervisor import STOP_GRACE

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

SLOW = {"do": "slow", "n": 600, "seconds": 60}
"""Ten words a second, for longer than any test waits."""


def read_a_word(response: HTTPResponse) -> None:
    """Read the stream up to the first word of `slow`."""
    assert response.status == 200
    while b"word0" not in (line := response.readline()):
        assert line, "the stream ended without a word"


def last_event(rest: bytes) -> dict[str, Any]:
    """The last event of a stream."""
    event: dict[str, Any] = json.loads(rest.replace(b"data: [DONE]", b"").strip().rpartition(b"data: ")[2])
    return event


# The client leaves


def leaves_no_trace(rig: Rig, left: int) -> None:
    """The provider sees its client gone too, was asked once, and the next request works."""
    assert rig.provider.wait_gone(left + 1, timeout=5)[left:] == [rig.since]
    assert rig.ask(RESPONSES, {"do": "text", "pieces": ["next"]}).text == "next"
    assert len(rig.posts) == 2


def test_a_client_that_leaves_mid_stream(codex: Rig, api: Api) -> None:
    """Whoever hangs up while words come stops the model's work."""
    left = len(codex.provider.gone)
    with codex.calling(api, SLOW) as connection:
        read_a_word(connection.getresponse())
    leaves_no_trace(codex, left)


def test_a_client_that_leaves_while_it_waits_for_a_whole_answer(codex: Rig, api: Api) -> None:
    """The same without streaming, where nothing has been sent yet."""
    left = len(codex.provider.gone)
    with codex.calling(api, SLOW, stream=False):
        pass
    leaves_no_trace(codex, left)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_before_the_first_token(use: UseRig, api: Api, stream: bool) -> None:
    """0.163: the same while the model is still silent. (0.107 notices only with the next word.)"""
    rig = use(CURRENT)
    left = len(rig.provider.gone)
    with rig.calling(api, {"do": "hang"}, stream=stream):
        pass
    leaves_no_trace(rig, left)


def test_others_go_on_when_a_client_leaves(codex: Rig) -> None:
    """One client's leaving stops its own turn alone."""
    left = len(codex.provider.gone)
    with codex.calling(RESPONSES, {"do": "slow", "n": 10, "seconds": 0.5}, stream=False) as stays:
        with codex.calling(CHAT, SLOW) as leaves:
            read_a_word(leaves.getresponse())
        codex.provider.wait_gone(left + 1, timeout=5)
        answer = RESPONSES.read(json.load(stays.getresponse()))
    assert answer["text"] == "".join(f"word{i} " for i in range(10))


def test_a_crowd_that_leaves_at_once(tmp_path: Path) -> None:
    """Legacy: clients that leave before their turn has begun do not hold up those who stay."""
    # 0.107 does not answer the interruption of a conversation that has no turn yet.
    body = json.dumps(RESPONSES.body(said(SLOW)))
    with start_rig(tmp_path, LEGACY) as rig:
        rig.ask(CHAT, {"do": "text"})
        crowd = [HTTPConnection("127.0.0.1", rig.bridge.port) for _ in range(100)]
        for connection in crowd:
            connection.request("POST", "/v1/responses", body, HEADERS)
        rig.client.get("models")  # Once it is answered, the requests before it have been looked at.
        for connection in crowd:
            connection.close()
        for _ in range(10):
            before = monotonic()
            assert rig.ask(CHAT, {"do": "text", "pieces": ["next"]}).text == "next"
            assert monotonic() - before < 15


# The child dies


def test_kill_9_mid_turn_and_recovery(tmp_path: Path, target: Target) -> None:
    """A killed child fails its turns, each with one clean end; the bridge stays and the next request works."""
    with start_rig(tmp_path, target) as rig, ThreadPoolExecutor(1) as pool:
        rig.ask(CHAT, {"do": "text"})
        child = rig.child()
        with rig.calling(RESPONSES, SLOW) as first, rig.calling(CHAT, SLOW) as second:
            streams = first.getresponse(), second.getresponse()
            for stream in streams:
                read_a_word(stream)
            whole = pool.submit(rig.ask, RESPONSES, SLOW)
            rig.provider.wait_requests(4)
            os.kill(child, signal.SIGKILL)
            failed, broken = (last_event(stream.read()) for stream in streams)
        assert failed["type"] == "response.failed"
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"]["bridge_code"] == "backend_crashed"
        assert broken["error"]["code"] == "backend_crashed"
        answer = whole.result(10)
        assert (answer.status, answer.error["code"]) == (502, "backend_crashed")

        for api in (RESPONSES, CHAT):
            assert rig.ask(api, {"do": "text", "pieces": ["back"]}).text == "back"
        assert rig.bridge.process.poll() is None
        assert rig.child() != child
        assert rig.client.get(f"{rig.bridge.root}/readyz").status_code == 200


# The end


@dataclass(frozen=True)
class Ended:
    """What is left of a bridge that was used on both endpoints and then stopped."""

    target: Target
    code: int
    left: list[int]
    "Processes that outlived it."
    hung_up: bool
    "Whether it closed the connection that a client had kept open after its answer, before it ended itself."
    output: str
    log: Counter[str]
    "How often each kind stands in the event log."


@pytest.fixture(scope="module", params=[CURRENT, LEGACY], ids=str)
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A bridge after SIGTERM."""
    directory = tmp_path_factory.mktemp("ended")
    log = directory / "events.ndjson"
    with start_rig(directory, request.param, PROXY_LOG_EVENTS=str(log)) as rig:
        for stream in (False, True):
            for api in (RESPONSES, CHAT):
                assert rig.ask(api, {"do": "text"}, stream=stream).end == api.done
        child = rig.child()
        with rig.calling(CHAT, {"do": "text"}, stream=False) as idle:
            assert idle.getresponse().read()
            rig.bridge.process.send_signal(signal.SIGTERM)
            idle.sock.settimeout(1.5)
            try:
                hung_up = idle.sock.recv(1) == b""
            except TimeoutError:
                hung_up = False
        code = rig.bridge.process.wait(10)
        assert rig.bridge.process.stdout is not None
        return Ended(
            request.param,
            code,
            left_of(child),
            hung_up,
            rig.bridge.process.stdout.read() + rig.bridge.stderr.read_text(),
            Counter(json.loads(line)["kind"] for line in log.read_text().splitlines()),
        )


def left_of(child: int) -> list[int]:
    """The child, if it is still there, and everything that it started (it leads a session)."""
    return [pid for pid, _, session in processes() if child in (pid, session)]


def test_sigterm_leaves_no_process(ended: Ended) -> None:
    """SIGTERM ends the bridge with 0 and takes the child along."""
    assert (ended.code, ended.left) == (0, [])


def test_sigterm_closes_idle_connections(ended: Ended) -> None:
    """A client's pool that keeps its connection open after an answer does not keep the bridge from stopping."""
    assert ended.hung_up


def test_the_event_log_has_what_the_clients_got(ended: Ended) -> None:
    """With PROXY_LOG_EVENTS every answer stands in the log: a whole one as it was sent, a stream with its end."""
    assert (ended.log["client_request"], ended.log["client_json"], ended.log["client_sse_done"]) == (5, 3, 2)


def test_what_is_left_out_is_said_at_start(ended: Ended) -> None:
    """The program says that the legacy dialect leaves chat's system messages out (and the other one does not)."""
    assert ("PROXY_IGNORE_CLIENT_SYSTEM_PROMPT" in ended.output) == (ended.target is LEGACY)


def test_sigterm_mid_turn(tmp_path: Path, target: Target) -> None:
    """A turn that ends within the grace is let finish; a longer one fails cleanly; no process is left."""
    with start_rig(tmp_path, target, PROXY_GRACE="1") as rig:
        with rig.calling(CHAT, {"do": "slow", "n": 4, "seconds": 0.4}) as short, rig.calling(RESPONSES, SLOW) as long:
            streams = short.getresponse(), long.getresponse()
            for stream in streams:
                read_a_word(stream)
            child = rig.child()
            rig.bridge.process.send_signal(signal.SIGTERM)
            finished, failed = (last_event(stream.read()) for stream in streams)
        assert finished["choices"][0]["finish_reason"] == "stop"
        assert failed["type"] == "response.failed"
        assert rig.bridge.process.wait(10) == 0
        assert left_of(child) == []


@pytest.fixture
def silent_names(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Makes a program of another one: where it runs, the name server never answers."""
    configuration = tmp_path / "resolv.conf"
    configuration.write_text("nameserver 127.0.53.53\n")

    def wrap(program: Path) -> Path:
        wrapper = tmp_path / "without-names"
        inside = f'mount --bind {quote(str(configuration))} /etc/resolv.conf && exec {quote(str(program))} "$@"'
        wrapper.write_text(f'#!/bin/sh\nexec unshare --map-root-user --mount sh -c {quote(inside)} codex "$@"\n')
        wrapper.chmod(0o755)
        if subprocess.run([wrapper, "--version"], capture_output=True, timeout=30).returncode:
            pytest.skip("this system allows no mount in a namespace of one's own")
        return wrapper

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        try:
            server.bind(("127.0.53.53", 53))
        except PermissionError:
            pytest.skip("only root may be a name server")
        yield wrap


def test_codex_with_its_own_tools_has_the_time_to_end(
    tmp_path: Path, silent_names: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.163 looks for its plugins on the internet, and ends when the name server has not answered for five seconds."""
    binary = codex_binaries.find(CURRENT.version)
    if isinstance(binary, str):
        pytest.skip(binary)
    monkeypatch.setenv("TURNBRIDGE_CODEX_0_163", str(silent_names(binary)))

    def with_plugins(home: Path) -> None:
        config = home / "config.toml"
        config.write_text(config.read_text().replace("plugins = false", "plugins = true"))

    log = tmp_path / "events.ndjson"
    settings: dict[str, Any] = {"PROXY_NATIVE_TOOLS": "true", "PROXY_LOG_EVENTS": str(log)}
    with start_rig(tmp_path, CURRENT, fill_home=with_plugins, **settings) as rig:
        assert rig.ask(RESPONSES, {"do": "text"}).status == 200
        rig.bridge.process.send_signal(signal.SIGTERM)
        began = monotonic()
        assert rig.bridge.process.wait(20) == 0
        seconds = monotonic() - began
    records = [json.loads(line) for line in log.read_text().splitlines()]
    ends = [record["payload"]["code"] for record in records if record["kind"] == "backend_exit"]
    assert (ends[-1], seconds > STOP_GRACE) == (0, True), (ends, seconds)


def test_a_legacy_child_keeps_nothing_open(tmp_path: Path) -> None:
    """Conversations are archived after their turn: the child's open files do not grow with the requests."""
    with start_rig(tmp_path, LEGACY) as rig:

        def open_files() -> int:
            return len(list(Path(f"/proc/{rig.child()}/fd").iterdir()))

        for _ in range(5):
            assert rig.bridge.post("/responses", {"model": "gpt-5.2", "input": "hello"}).status_code == 200
        before = open_files()
        for _ in range(25):
            assert rig.bridge.post("/responses", {"model": "gpt-5.2", "input": "hello"}).status_code == 200
        assert open_files() <= before + 10
