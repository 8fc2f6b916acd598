"""A real Codex behind the bridge: what a client gets when the model's provider fails."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
from harness import ROOT
from real import codex_binaries
from real.provider import Provider, codex_home
from real.rig import (
    CHAT,
    CURRENT,
    NEWEST,
    RESPONSES,
    TEXT_HISTORY,
    Answer,
    Api,
    Rig,
    Target,
    UseRig,
    start_rig,
)

from bridge.appserver.failures import has_meaning


def is_still_well(rig: Rig, api: Api) -> bool:
    """Whether the next request works."""
    return rig.ask(api, {"do": "text", "pieces": ["well"]}).text == "well"


def code_of(answer: Answer) -> str:
    """The bridge's own code of a failure within a stream."""
    return str(answer.error.get("bridge_code") or answer.error["code"])


def test_rate_limit(codex: Rig, api: Api, stream: bool) -> None:
    """The provider's 429 is the client's 429, as OpenAI's clients know it, also for a stream."""
    answer = codex.ask(api, {"do": "error", "status": 429}, stream=stream)
    assert answer.status == 429
    assert (answer.error["type"], answer.error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


def test_bad_request(codex: Rig, api: Api, stream: bool) -> None:
    """The provider's 400 is the client's 400, with the provider's own message and code."""
    action = {"do": "error", "status": 400, "message": "Your <prompt> is odd", "code": "odd_prompt"}
    answer = codex.ask(api, action, stream=stream)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert (answer.error["message"], answer.error["code"]) == ("Your <prompt> is odd", "odd_prompt")


@pytest.mark.parametrize(
    ("action", "status", "code"),
    [
        ({"do": "error", "status": 401}, 401, "upstream_unauthorized"),
        ({"do": "error", "status": 500}, 502, "upstream_error"),
        ({"do": "failed", "code": "server_error"}, 502, "upstream_error"),
        ({"do": "failed", "code": "context_length_exceeded"}, 400, "context_length_exceeded"),
        ({"do": "failed", "code": "insufficient_quota"}, 429, "insufficient_quota"),
        ({"do": "empty"}, 502, "empty_response"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_other_failures(codex: Rig, api: Api, action: Any, status: int, code: str) -> None:
    """Whatever fails before the first word is an HTTP error, even for a stream; nothing is retried."""
    answer = codex.ask(api, action, stream=True)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert len(codex.posts) == 1


@pytest.mark.parametrize(
    ("reason", "finish_reason"), [("max_output_tokens", "length"), ("content_filter", "content_filter")]
)
def test_incomplete(codex: Rig, api: Api, stream: bool, reason: str, finish_reason: str) -> None:
    """An answer that the provider cuts short is no error: the text is kept, and the end says why."""
    answer = codex.ask(api, {"do": "incomplete", "reason": reason, "pieces": ["so", " far"]}, stream=stream)
    assert (answer.status, answer.text, answer.error) == (200, "so far", {})
    assert answer.end == (finish_reason if api is CHAT else "incomplete")
    if api is RESPONSES:
        assert answer.raw["incomplete_details"] == {"reason": reason}
    assert len(codex.posts) == 1


# The stream breaks


def test_a_dropped_stream_fails_a_whole_answer(codex: Rig, api: Api) -> None:
    """Not streamed: a dropped stream is a 502, never half an answer."""
    answer = codex.ask(api, {"do": "drop", "n": 3})
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")
    assert is_still_well(codex, api)


def test_a_dropped_stream_fails_the_clients_stream(codex: Rig, api: Api) -> None:
    """Streamed: after the first words the stream ends with one failure, and not as if it were complete."""
    answer = codex.ask(api, {"do": "drop", "n": 3, "delay": 0.02}, stream=True)
    assert (answer.status, answer.text) == (200, "word0 word1 word2 ")
    assert answer.end == ("failed" if api is RESPONSES else None)
    assert code_of(answer) == "upstream_error"
    assert is_still_well(codex, api)


# `times` counts the requests with the same script, so that each case has words of its own number.


@pytest.mark.parametrize(("api", "words"), [(RESPONSES, 2), (CHAT, 3)], ids=["responses", "chat"])
def test_a_retry_is_hidden_from_a_whole_answer(use: UseRig, target: Target, api: Api, words: int) -> None:
    """Not streamed: when Codex itself retries a dropped stream, the client gets the second answer alone."""
    rig = use(target, retries=1)
    answer = rig.ask(api, {"do": "drop", "n": words, "times": 1})
    assert (answer.status, answer.text, answer.end) == (200, "recovered", api.done)
    assert len(rig.posts) == 2


@pytest.mark.parametrize(("api", "words"), [(RESPONSES, 4), (CHAT, 5)], ids=["responses", "chat"])
def test_a_retry_after_visible_output_fails_the_stream(use: UseRig, target: Target, api: Api, words: int) -> None:
    """Streamed: words that are out cannot be taken back, so the retry's text never follows them."""
    rig = use(target, retries=1)
    answer = rig.ask(api, {"do": "drop", "n": words, "times": 1}, stream=True)
    assert answer.text == "".join(f"word{i} " for i in range(words))
    assert answer.end == ("failed" if api is RESPONSES else None)
    assert code_of(answer) == "stream_interrupted"
    assert is_still_well(rig, api)


# The table in docs/http-api.md

TARGETS = (TEXT_HISTORY, CURRENT, NEWEST)
"""The columns of the table: what `--dialect auto` does with the oldest, the pinned and the newest Codex."""
NO_VARIABLE = "no request: the variable that `env_key` names is not set"


def table() -> dict[str, list[str]]:
    """The rows of the table by their first cell: what the provider does, and the outcome for each Codex."""
    page = (ROOT / "docs" / "http-api.md").read_text()
    section = page.partition("### What becomes of the provider's errors\n")[2].partition("\n#")[0]
    header, _, *lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    assert header[1:] == [f"Codex {target.version}" for target in TARGETS]
    return {cause: outcomes for cause, *outcomes in lines}


def action_of(cause: str) -> dict[str, Any]:
    """The provider's script for the first cell of a row."""
    if found := re.fullmatch(r"HTTP (\d{3})(?: `(\w+)`)?", cause):
        action = {"do": "error", "status": int(found[1])}
        return action | ({"code": found[2], "message": f"scripted {found[2].replace('_', ' ')}"} if found[2] else {})
    if found := re.fullmatch(r"`response.failed` `(\w+)`", cause):
        return {"do": "failed", "code": found[1]}
    assert cause == "the stream breaks off", cause
    return {"do": "drop", "n": 3}


def outcome_of(answer: Answer) -> str:
    """A cell of the table. OpenAI's SDKs repeat what their rules and the answer's header let them repeat."""
    repeated = answer.status in (408, 409, 429) or answer.status >= 500
    if answer.headers.get("x-should-retry") == "false":
        repeated = False
    return f"{answer.status} `{answer.error['code']}`" + (", retried" if repeated else "")


@pytest.mark.parametrize("column", range(len(TARGETS)), ids=[target.version for target in TARGETS])
@pytest.mark.parametrize("cause", [cause for cause in table() if cause != NO_VARIABLE])
def test_the_table_of_the_documentation(use: UseRig, cause: str, column: int) -> None:
    """Status, code and whether it is retried are as documented, and the provider was asked once."""
    rig = use(TARGETS[column])
    answer = rig.ask(RESPONSES, action_of(cause))
    assert outcome_of(answer) == table()[cause][column], answer.error["message"]
    assert len(rig.posts) == 1


@pytest.mark.parametrize("column", range(len(TARGETS)), ids=[target.version for target in TARGETS])
def test_a_missing_key_of_the_provider_is_not_retried(tmp_path: Path, column: int) -> None:
    """The variable is named, with what to do."""
    with Provider() as provider:
        home = codex_home(tmp_path / "own", provider)
        config = home / "config.toml"
        config.write_text(config.read_text().replace("wire_api", 'env_key = "HOUSE_KEY"\nwire_api'))
        with start_rig(tmp_path, TARGETS[column], CODEX_HOME=str(home)) as rig:
            answer = rig.ask(RESPONSES, "hello")
    assert outcome_of(answer) == table()[NO_VARIABLE][column]
    assert "HOUSE_KEY" in answer.error["message"]
    assert provider.requests == []


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_every_kind_of_error_has_a_meaning(tmp_path: Path, target: Target) -> None:
    """Each kind in Codex's own schema is mapped; a new one would be a 502, which every client repeats."""
    binary = codex_binaries.find(target.version)
    if isinstance(binary, str):
        pytest.skip(binary)
    subprocess.run(
        [binary, "app-server", "generate-json-schema", "--out", tmp_path / "schema"],
        env={"CODEX_HOME": str(tmp_path), "HOME": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    kinds = set[str]()
    for file in (tmp_path / "schema").rglob("*.json"):
        for alternative in definition(orjson.loads(file.read_bytes()), "CodexErrorInfo"):
            kinds.update(alternative.get("enum", ()), alternative.get("properties", ()))
    assert "contextWindowExceeded" in kinds
    assert [kind for kind in sorted(kinds) if not has_meaning(kind)] == []


def definition(schema: Any, name: str) -> list[dict[str, Any]]:
    """The alternatives of the type of this name, wherever it is defined in a schema."""
    if not isinstance(schema, dict):
        return []
    found = schema.get(name)
    here = found.get("oneOf") or found.get("anyOf") if isinstance(found, dict) else None
    return [*(here or ()), *(each for value in schema.values() for each in definition(value, name))]
