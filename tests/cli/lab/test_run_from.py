"""`turnbridge lab run --from LOG`: the table of a run, from its log; and runs over a provider's HTTP."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli.lab.command import (
    BRIDGE,
    MODEL,
    RIGHT,
    cells,
    environment,
    lab,
    read_results,
    scripted,
    write_suite,
)
from harness import scripted_codex, turns
from real import codex_binaries
from real.provider import Provider, codex_home
from real.rig import said
from upstream.answers import Gate, Stream, refusal
from upstream.connection import Request
from upstream.openai_chat import ChatServer, serving_in_thread, stream
from upstream.openai_chat_chunks import answer, call, text

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

ANSWER = [{"text": RIGHT}, {"usage": {"input": 100, "output": 10}}]
WRONG = [{"text": RIGHT.replace("Bern", "Brig")}, {"usage": {"input": 90, "output": 12}}]
LIMIT = [{"error": {"message": "Slow down.", "info": "rateLimitExceeded"}}]

Json = dict[str, Any]


def scores(path: Path) -> list[Json]:
    """What the results say of each cell, but how it went and when."""
    left_out = ("seconds", "req_id")
    found = [{name: value for name, value in each.items() if name not in left_out} for each in read_results(path)]
    return sorted(found, key=lambda each: (each["variant"], each["case"], each["repeat"]))


def test_the_log_of_a_run_gives_its_table(tmp_path: Path) -> None:
    """Right, wrong, mended and broken answers, errors of two kinds, several repetitions, an end that never came."""
    suite = write_suite(tmp_path / "suite.json", *"abc")
    mended, broken = [{"text": RIGHT.replace("}</", ",}</")}], [{"text": RIGHT.replace('{"name"', "{name")}]
    crash = [{"deltas": ["half "]}, {"exit": 3}]
    codex = scripted_codex(tmp_path, turns(ANSWER, WRONG, mended, LIMIT, broken, [{"text": "No."}], crash))
    run: list[str | Path] = [suite, "-V", "short", "-V", "spec", "-n", "2", "--max-errors", "50"]
    log = tmp_path / "run.ndjson"
    asked = lab(
        tmp_path,
        "run",
        *run,
        "-m",
        MODEL,
        "-c",
        "1",
        "--results",
        "asked.jsonl",
        "--log-events",
        log,
        **scripted(codex),
    )
    assert {each["form"] for each in read_results(tmp_path / "asked.jsonl")} == {
        "clean",
        "repaired",
        "broken",
        "absent",
        None,
    }

    again = lab(tmp_path, "run", *run, "--from", log)
    assert again.stdout == asked.stdout
    assert scores(tmp_path / "run.ndjson.results.jsonl") == scores(tmp_path / "asked.jsonl")
    assert len(cells(read_results(tmp_path / "run.ndjson.results.jsonl"), "error")) == 3
    # Once more: what was scored again is written anew, what was asked for stays.
    lab(tmp_path, "run", *run, "--from", log)
    assert scores(tmp_path / "run.ndjson.results.jsonl") == scores(tmp_path / "asked.jsonl")
    refused = lab(tmp_path, "run", *run, "--from", log, "--results", "asked.jsonl", code=2)
    assert "holds answers from a model" in refused.stderr

    # The log of something else as well, and cut in the middle of an answer.
    whole = log.read_text().splitlines(keepends=True)
    ends = [number for number, line in enumerate(whole) if '"kind":"turn_end"' in line]
    with log.open("a") as file:
        subprocess.run(
            [*BRIDGE, "exec", "--mock", "--prompt", "hi", "--log-events", tmp_path / "other.ndjson"],
            env=environment(tmp_path),
            stdout=subprocess.DEVNULL,
            check=True,
        )
        file.write((tmp_path / "other.ndjson").read_text())
        file.writelines(whole[: ends[0] - 1])
        file.write(whole[ends[0]][:40])
    write_suite(suite, "a", "b")
    cut = lab(tmp_path, "run", suite, "--from", log, "--results", "cut.jsonl", "--max-errors", "100")
    assert "note: 4 answer(s) not scored: the suite has no case c\n" in cut.stderr
    assert "note: 1 answer(s) not scored: the log ends before they do\n" in cut.stderr
    assert "note: 1 request(s) in" in cut.stderr
    assert "do not come from the lab" in cut.stderr
    assert "the last line of 1 file(s) is torn" in cut.stderr
    assert scores(tmp_path / "cut.jsonl") == [each for each in scores(tmp_path / "asked.jsonl") if each["case"] != "c"]
    # Nothing to score: the message names the remedy, and no file is left, or emptied.
    other = lab(tmp_path, "run", suite, "--from", log, "--results", "other.jsonl", "-m", "another", code=2)
    assert "not scored: they come from another model, scripted" in other.stderr
    assert other.stderr.splitlines()[-1].startswith(f"error: Nothing to score in {log}. Choose the suite,")
    lab(tmp_path, "run", suite, "--from", log, "--results", "cut.jsonl", "-m", "another", code=2)
    assert scores(tmp_path / "cut.jsonl")
    assert not (tmp_path / "other.jsonl").exists()
    foreign = lab(tmp_path, "run", suite, "--from", "other.ndjson", code=2)
    assert "error: Nothing to score in other.ndjson. Use `lab run --log-events`" in foreign.stderr
    assert not (tmp_path / "other.ndjson.results.jsonl").exists()
    # What was not chosen is reported once.
    some = lab(tmp_path, "run", suite, "--from", log, "--case", "a", "--results", "a.jsonl", "--max-errors", "100")
    assert "note: 8 answer(s) not scored: their cases are not selected\n" in some.stderr
    assert "the suite has no case" not in some.stderr
    assert {each["case"] for each in scores(tmp_path / "a.jsonl")} == {"a"}


def test_results_go_beside_the_log_whatever_its_ending(tmp_path: Path) -> None:
    suite, codex = write_suite(tmp_path / "suite.json", "a"), scripted_codex(tmp_path, turns(ANSWER))
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "run.ndjson"
    lab(tmp_path, "run", suite, "-m", MODEL, "-n", "1", "--results", "r", "--log-events", log, **scripted(codex))
    (tmp_path / "logs" / "run.log").write_bytes(log.read_bytes())
    for place in ("logs/run.ndjson", "logs/run.log", "logs"):
        lab(tmp_path, "run", suite, "--from", place)
        assert scores(tmp_path / f"{place}.results.jsonl") == scores(tmp_path / "r")
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["logs.results.jsonl"]


def test_native_calls_of_a_real_codex(tmp_path: Path) -> None:
    """The same provider calls natively where the tools are offered so, and in text otherwise."""
    binary = codex_binaries.find(codex_binaries.CURRENT)
    if isinstance(binary, str):
        pytest.skip(binary)
    action = {"do": "calls", "calls": [{"name": "get_weather", "arguments": '{"city":"Bern"}'}]}
    suite = write_suite(tmp_path / "suite.json", "a", "b", asked=said(action))
    run: list[str | Path] = [suite, "-V", "native", "-V", "spec", "-n", "2"]
    with Provider() as provider:
        asked = lab(
            tmp_path,
            "run",
            *(*run, "-m", "gpt-5.2", "--results", "asked.jsonl", "--log-events", "run.ndjson"),
            CODEX_BIN=str(binary),
            CODEX_HOME=str(codex_home(tmp_path / "home", provider)),
        )
    assert re.search(r"passed +4/4 100 % +4/4 100 %", asked.stdout)
    for each in read_results(tmp_path / "asked.jsonl"):
        assert ("<tool_call>" in "".join(each["texts"])) == (each["variant"] == "spec")
    again = lab(tmp_path, "run", *run, "--from", "run.ndjson")
    assert again.stdout == asked.stdout
    assert scores(tmp_path / "run.ndjson.results.jsonl") == scores(tmp_path / "asked.jsonl")


# Over HTTP

CONFIG = """
[backends.chat]
type = "openai"
base_url = "{url}/v1"
key_env = "CHAT_KEY"

[routing]
default = "chat"

[routing.patterns]
chat = ["some-"]
"""


def configured(directory: Path, server: ChatServer) -> dict[str, Any]:
    """The variables of a run that asks this server."""
    path = directory / "config.toml"
    path.write_text(CONFIG.format(url=server.url))
    return {"PROXY_CONFIG": str(path), "CHAT_KEY": str(server.key)}


def answered(request: Request) -> Stream:
    """A right answer, in the way in which the tools were offered."""
    if "tools" in request.body:
        return stream(answer(call("get_weather", '{"city":', '"Bern"}')))
    return stream(answer(text(RIGHT[:20], RIGHT[20:])))


def test_a_provider_over_http(tmp_path: Path) -> None:
    """The text goes into the instructions, or the tools to the provider; the log gives the same table."""
    suite = write_suite(tmp_path / "suite.json", "a", "b")
    run: list[str | Path] = [suite, "-V", "spec", "-V", "native", "-n", "2"]
    with serving_in_thread() as server:
        server.will(*[answered] * 7, refusal(429, "rate_limit_exceeded", "Slow down.", retry_after="60"))
        asked = lab(
            tmp_path,
            "run",
            *(*run, "-m", "some-model", "-c", "1", "--results", "asked.jsonl"),
            *("--log-events", "run.ndjson", "--max-errors", "50"),
            **configured(tmp_path, server),
        )
        assert server.faults == []
        bodies = [request.body for request in server.requests]
    assert re.search(r"passed +4/4 100 % +3/3 100 %", asked.stdout)
    assert re.search(r"errors, not counted +0 +1/4 25 %", asked.stdout)
    rendered = lab(tmp_path, "render", suite, "--case", "a").stdout
    text_bodies = [body for body in bodies if "tools" not in body]
    assert len(text_bodies) == 4
    for body in text_bodies:
        system, user = body["messages"]
        assert system["content"] == rendered
        assert user["content"].startswith("[user] How is it in Bern?")
    again = lab(tmp_path, "run", *run, "--from", "run.ndjson", "--max-errors", "50")
    assert again.stdout == asked.stdout
    assert scores(tmp_path / "run.ndjson.results.jsonl") == scores(tmp_path / "asked.jsonl")


def test_concurrency_is_limited(tmp_path: Path) -> None:
    """The first answers are held back until five are asked for; the last of them comes first."""
    suite, gate = write_suite(tmp_path / "suite.json", *"abcdef"), Gate()
    with serving_in_thread() as server:
        held = Stream([gate, *answer(text(RIGHT))], names=False, done=True)
        server.will(*[held] * 5, *[answered] * 7)
        process = subprocess.Popen(
            [*BRIDGE, "lab", "run", str(suite), "-m", "some-model", "-n", "2", "-c", "5", "--results", "r.jsonl"],
            cwd=tmp_path,
            env=environment(tmp_path, **configured(tmp_path, server)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        server.wait_for(lambda: len(server.requests) == 5)
        # A sixth would come while the five are waited for: they all wait.
        server.wait_for(lambda: gate.held == 5)
        assert len(server.requests) == 5
        gate.open()
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (0, "")
    assert re.search(r"passed +12/12 100 %", stdout)
    assert len(set(cells(read_results(tmp_path / "r.jsonl")))) == 12


def test_the_order_of_results_does_not_matter(tmp_path: Path) -> None:
    suite, results = write_suite(tmp_path / "suite.json", *"abc"), tmp_path / "r.jsonl"
    codex = scripted_codex(tmp_path, turns(ANSWER, WRONG, LIMIT, ANSWER))
    run: list[str | Path] = [suite, "-m", MODEL, "-n", "3", "-V", "spec", "-V", "short", "--max-errors", "50"]
    lab(tmp_path, "run", *run, "--results", results, "--json", "asked.json", **scripted(codex))
    head, *lines = results.read_text().splitlines(keepends=True)
    (tmp_path / "turned.jsonl").write_text("".join([head, *reversed(lines)]))
    lab(
        *(tmp_path, "report", "turned.jsonl", "-V", "spec", "-V", "short"),
        *("--max-errors", "50", "--json", "turned.json"),
    )
    asked, turned = (json.loads((tmp_path / name).read_text()) for name in ("asked.json", "turned.json"))
    assert asked["cases"] == turned["cases"]
    assert asked["columns"] == turned["columns"]
