"""Too many turns, and the end of the bridge, with turns that run over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from signal import SIGTERM

import pytest
from fault.providers import HELLO, KINDS, Providers, Server, labelled, marked, providers_in_thread
from fault.rig import ENDPOINTS, PATHS, Outcome, Rig, body_of, rigged
from server.prompted import send_request, wait_for
from server.talk import talking
from upstream.connection import Request

pytestmark = pytest.mark.deep

SAID = "".join(HELLO)


@pytest.fixture(scope="module")
def providers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Providers]:
    with providers_in_thread(tmp_path_factory.mktemp("certificate")) as ready:
        yield ready


@pytest.fixture(scope="module")
def crowded(providers: Providers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A bridge that takes one turn at a time for each backend, and waits for long before it ends."""
    directory = tmp_path_factory.mktemp("crowded")
    with rigged(directory, providers, PROXY_MAX_TURNS="1", PROXY_MAX_QUEUE="0", PROXY_GRACE="60") as ready:
        yield ready


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as ready:
        yield ready


def is_served(rig: Rig, kind: str) -> bool:
    return rig.ask(f"to-{kind}").status == 200


def is_written(server: Server, label: str) -> bool:
    return any(request.written for request in labelled(server, label))


def all_have_left(requests: list[Request]) -> bool:
    return all(request.left_at for request in requests)


def hold(rig: Rig, pool: ThreadPoolExecutor, kind: str, label: str, play: str = "held") -> Future[Outcome]:
    """A turn that waits in the middle of its answer."""
    asked = pool.submit(rig.ask, f"to-{kind}", marked(play, label), stream=play == "held")
    rig.kept_waiting(kind, label)
    return asked


def is_stopping(rig: Rig) -> bool:
    return "stopping: " in rig.bridge.stderr.read_text()


def test_too_many_turns_are_told_to_come_back(crowded: Rig, pool: ThreadPoolExecutor) -> None:
    """The provider hears nothing of them; other backends take theirs, and a place that is free is given away."""
    for kind in KINDS:
        running = hold(crowded, pool, kind, "crowd")
        for endpoint in ENDPOINTS:
            for stream in (False, True):
                refused = crowded.ask(f"to-{kind}", marked("hello", "one-too-many"), endpoint=endpoint, stream=stream)
                assert (refused.status, refused.code) == (503, "overloaded")
                assert int(refused.headers["retry-after"]) >= 1
        others = [other for other in KINDS if other != kind]
        assert [crowded.ask(f"to-{other}").status for other in others] == [200] * 3
        crowded.providers.of(kind).plays.gates["crowd"].open()
        assert running.result().text == SAID
        assert crowded.ask(f"to-{kind}").status == 200
        assert labelled(crowded.providers.of(kind), "one-too-many") == []


def test_choices_that_have_no_room_leave_nothing_behind(crowded: Rig) -> None:
    """One of two turns could begin; it is let go, and its place is free again."""
    for kind in KINDS:
        refused = crowded.ask(f"to-{kind}", marked("held", "two"), endpoint="chat", n=2)
        assert (refused.status, refused.code) == (503, "overloaded")
        wait_for(partial(is_served, crowded, kind), "the place is free", 10)


def test_a_client_that_leaves_between_two_attempts_is_not_asked_for_again(crowded: Rig) -> None:
    """The provider wants half a minute: nobody waits for that in the place of one who has left."""
    for kind in KINDS:
        body = body_of("responses", f"to-{kind}", marked("500-later", "between"))
        with send_request(crowded.bridge, PATHS["responses"], body):
            server = crowded.providers.of(kind)
            server.wait_for(partial(is_written, server, "between"))
            assert crowded.ask(f"to-{kind}").status == 503
        wait_for(partial(is_served, crowded, kind), "the place is free", 10)
        assert len(labelled(server, "between")) == 1


def test_a_second_signal_hurries(crowded: Rig, pool: ThreadPoolExecutor) -> None:
    """It stops the bridge, which is used by no test after this one."""
    running = [hold(crowded, pool, kind, "hurried") for kind in KINDS]
    crowded.bridge.process.send_signal(SIGTERM)
    wait_for(lambda: is_stopping(crowded), "the bridge is stopping")
    assert not any(future.done() for future in running)
    crowded.bridge.process.send_signal(SIGTERM)
    started = time.monotonic()
    for future in running:
        outcome = future.result()
        assert (outcome.text, outcome.code) == (HELLO[0], "shutdown_initiated")
    assert crowded.bridge.process.wait(10) == 0
    assert time.monotonic() - started < 5
    assert "Traceback" not in crowded.bridge.stderr.read_text()


def test_a_stop_waits_for_turns_and_then_fails_them(
    providers: Providers, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """Those that end within the grace period have their answers; the rest is told why, and nothing is left."""
    with rigged(tmp_path, providers, PROXY_GRACE="2.5") as rig, talking(rig.bridge) as talk:
        ending = {kind: hold(rig, pool, kind, "ends") for kind in KINDS}
        whole = {kind: hold(rig, pool, kind, "ends-whole", "early") for kind in KINDS}
        stuck = {kind: hold(rig, pool, kind, "stuck") for kind in KINDS}
        early = {kind: hold(rig, pool, kind, "early", "early") for kind in KINDS}
        behind = {kind: rig.ask(f"to-{kind}", marked("held", "behind"), background=True) for kind in KINDS}
        talk.send({"model": "to-anthropic", "input": marked("held", "socket")})
        rig.kept_waiting("anthropic", "socket")
        rig.bridge.process.send_signal(SIGTERM)
        wait_for(lambda: is_stopping(rig), "the bridge is stopping")
        started = time.monotonic()
        with pytest.raises(ConnectionError):
            rig.ask("to-openai")
        for kind in KINDS:
            rig.kept_waiting(kind, "ends").open()
            rig.kept_waiting(kind, "ends-whole").open()
        for kind in KINDS:
            assert (ending[kind].result().text, ending[kind].result().code) == (SAID, None)
            assert (whole[kind].result().status, whole[kind].result().text) == (200, SAID)
        for kind in KINDS:
            assert (stuck[kind].result().text, stuck[kind].result().code) == (HELLO[0], "shutdown_initiated")
            assert (early[kind].result().status, early[kind].result().code) == (503, "shutdown_initiated")
        failed = talk.rest()[-1]
        assert (failed["type"], failed["response"]["error"]["bridge_code"]) == ("response.failed", "shutdown_initiated")
        assert rig.bridge.process.wait(10) == 0
        assert time.monotonic() - started < 2.5 + 5
        for kind in KINDS:
            server = providers.of(kind)
            requests = [labelled(server, label)[0] for label in ("stuck", "early", "behind")]
            server.wait_for(partial(all_have_left, requests))
        assert "Traceback" not in rig.bridge.stderr.read_text()
    with rigged(tmp_path, providers) as again:
        for kind in KINDS:
            stored = again.send("GET", f"/v1/responses/{behind[kind].body['id']}").body
            assert stored["status"] == "failed", kind
        again.assert_well()
