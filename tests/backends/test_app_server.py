"""Which model is served by whom, and when a turn is not even begun."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import ROOT, RunningBridge, running_bridge
from server.prompted import MODEL, ask, prompted_codex, send_request, wait_for

LOGGED_OUT = """#!{python} -Wignore
import sys

sys.path.insert(0, {root!r})
import trio
from bridge.appserver.standin import server
from jsonrpcserver import Success


class LoggedOut(server.Standin):
    def _account(self, **_):
        return Success({{"account": None, "requiresOpenaiAuth": True}})

    def _model_list(self, **_):
        entries = [{{"id": "gpt-9"}}, {{"id": "gpt-9-hidden", "hidden": True}}, {{"id": 5}}, {{}}]
        return Success({{"data": entries}})


trio.run(LoggedOut().run)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge for two turns at a time."""
    directory = tmp_path_factory.mktemp("small")
    home = directory / "home"
    home.mkdir()
    (home / "config.toml").write_text('model = "house-model"\n')
    with running_bridge(
        directory,
        CODEX_BIN=str(prompted_codex(directory)),
        CODEX_HOME=str(home),
        PROXY_MODELS=f"{MODEL},Another-Model",
        PROXY_MAX_TURNS="2",
    ) as bridge:
        bridge.post("/responses", ask({"text": "hi"}))
        yield bridge


def test_models_are_listed_from_all_sources(small: RunningBridge) -> None:
    """The child's, CODEX_HOME's, PROXY_MODELS', the mock ones and the aliases; each once."""
    with small.client() as client:
        listed = [model["id"] for model in client.get("/models").json()["data"]]
    assert {"house-model", MODEL, "Another-Model", "mock-echo", "mock-text", "codex-5", "gpt-5.2"} <= set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("model", ["house-model", "HOUSE-MODEL", "another-model", "codex-5", "gpt-5.2-codev-l"])
def test_a_model_of_any_source_is_served_under_the_name_that_was_asked_for(small: RunningBridge, model: str) -> None:
    """In any case; the answer echoes the client's spelling."""
    answer = small.post("/responses", ask({"text": "hi"}, model=model))
    assert answer.status_code == 200
    assert answer.json()["model"] == model


def test_mock_models_are_the_stand_in_s_beside_any_child(small: RunningBridge) -> None:
    """mock-echo echoes; it does not go to the child, which would do what the text says."""
    text = '[{"text": "performed"}]'
    answer = small.post("/responses", {"model": "Mock-Echo", "input": text}).json()
    assert answer["output"][0]["content"][0]["text"] == text


def test_an_unknown_model_is_told_some_that_exist(small: RunningBridge) -> None:
    """400 model_not_found."""
    refused = small.post("/responses", ask({"text": "hi"}, model="gpt-4"))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "model_not_found"
    assert "house-model" in refused.json()["error"]["message"]


def test_more_turns_than_allowed_are_asked_to_come_back(small: RunningBridge) -> None:
    """503 overloaded with Retry-After while two run; a place that becomes free is taken."""
    body = ask({"text": "one"}, {"hang": True}, stream=True)
    with send_request(small, "/v1/responses", body) as one:
        with send_request(small, "/v1/responses", body) as two:
            assert one.recv(1)
            assert two.recv(1)
            refused = small.post("/responses", ask({"text": "hi"}))
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "overloaded"
            assert refused.headers["retry-after"] == "1"
        wait_for(lambda: small.post("/responses", ask({"text": "hi"})).status_code == 200, "a free place", 3)


def test_the_limit_holds_for_a_burst(small: RunningBridge) -> None:
    """Of twenty at once every one is either served or asked to come back, and never more than two run."""

    def post(_: int) -> tuple[int, str]:
        answer = small.post("/responses", ask({"sleep": 0.1}, {"text": "hi"}))
        return answer.status_code, answer.text

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(post, range(20)))
    assert {status for status, _ in answers} == {200, 503}
    assert all("overloaded" in text for status, text in answers if status == 503)


def test_without_a_login_the_way_to_one_is_told(tmp_path: Path) -> None:
    """401 that says which command to run, for streams too; hidden and broken entries of the list are no models."""
    codex = tmp_path / "codex"
    codex.write_text(LOGGED_OUT.format(python=sys.executable, root=str(ROOT)))
    codex.chmod(0o755)
    with running_bridge(tmp_path, CODEX_BIN=str(codex)) as bridge:
        for streamed in (False, True):
            refused = bridge.post("/responses", {"model": "gpt-9", "input": "hi", "stream": streamed})
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "codex_not_logged_in"
            assert "codex login" in refused.json()["error"]["message"]
        assert bridge.post("/responses", {"model": "mock-echo", "input": "hi"}).status_code == 200
        with bridge.client() as client:
            listed = [model["id"] for model in client.get("/models").json()["data"]]
            assert client.get(f"{bridge.root}/readyz").status_code == 200
    assert "gpt-9" in listed
    assert "gpt-9-hidden" not in listed
