"""The laboratory over a real Codex: every shipped case in three variants, and the same table from its log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from lab.scripted_model import MANNERS, NotPossible, answer
from real import codex_binaries
from real.provider import Json, Provider, codex_home

from bridge.core.items import FunctionOutput, Message
from bridge.lab import SHIPPED, Case, LabVariant, load_suite
from bridge.tools.payload import neutralise

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "fixtures/cases"
_SECONDS = re.compile(r"^ *mean seconds .*$", re.MULTILINE)
VARIANTS = ("spec", "short", "nonce-tag")


class LabProvider(Provider):
    """Finds the case and the variant in what Codex sends, and answers like the scripted model: now right, now wrong."""

    def __init__(self, cases: tuple[Case, ...]) -> None:
        super().__init__()
        pairs = [(case, SHIPPED[name]) for case in cases for name in VARIANTS]
        self._known = [(case, variant, variant.text_for(case), _said(case)) for case, variant in pairs]
        self._known.sort(key=lambda known: -len("".join(known[3])))

    def action_for(self, body: Json) -> Json:
        texts = "\n".join([*_texts(body["input"]), body.get("instructions") or ""])
        for case, variant, injected, said in self._known:
            if injected in texts and all(text in texts for text in said):
                return {"do": "text", "pieces": [_answer(case, variant)], "chunk": 40}
        return {"do": "failed", "message": "no such case"}


def _answer(case: Case, variant: LabVariant) -> str:
    number = zlib.crc32(f"{case.id} {variant.name}".encode())
    manner = list(MANNERS)[number % len(MANNERS)] if number % 3 == 0 else "right"
    try:
        texts = answer(case, variant, manner).texts
    except NotPossible:
        texts = answer(case, variant).texts
    return "\n".join(texts) or "I have nothing to say."


def _said(case: Case) -> list[str]:
    """The texts of a case, as they reach the model; Codex cuts long outputs of tools, so only how they begin."""
    return [
        (neutralise(item.text) if case.tools and case.tool_choice.mode != "none" else item.text)[:500]
        for item in case.items
        if isinstance(item, Message | FunctionOutput)
    ]


def _texts(items: list[Json]) -> list[str]:
    found: list[str] = []
    for item in items:
        content = item.get("content") or item.get("output")
        parts = content if isinstance(content, list) else [{"text": content}]
        found += [text for part in parts if isinstance(text := part.get("text"), str)]
    return found


def lab(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command itself."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "XDG_STATE_HOME": str(directory / "state"),
        "PROXY_CODEX_WORKDIR": str(directory / "work"),
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-m", "bridge", "lab", "run", str(SUITE), *arguments],
        cwd=directory,
        env=env | {"PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=500,
        check=False,
    )


class RefusingProvider(Provider):
    """Refuses every request with this status and code."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__()
        self._action = {"do": "error", "status": status, "code": code, "message": "This model is not for you."}

    def action_for(self, body: Json) -> Json:
        return self._action


def pinned_codex() -> str:
    """The path of the pinned Codex; skips the test where there is none."""
    binary = codex_binaries.find(codex_binaries.CURRENT)
    if isinstance(binary, str):
        pytest.skip(binary)
    return str(binary)


def run_and_rescore(directory: Path, repeat: int, *only: str) -> list[dict[str, Any]]:
    """Ask a real Codex, then score its log again; the cells, which are the same both times."""
    binary = pinned_codex()
    chosen = [part for name in VARIANTS for part in ("--variant", name)] + list(only)
    with LabProvider(load_suite(SUITE).cases) as provider:
        home = codex_home(directory / "home", provider)
        log = directory / "lab.ndjson"
        done = lab(
            directory,
            *("--model", "gpt-5.2", *chosen, "--repeat", str(repeat), "--concurrency", "8"),
            *("--log-events", str(log), "--results", "asked.jsonl", "--json", "asked.json"),
            CODEX_BIN=binary,
            CODEX_HOME=str(home),
        )
        assert done.returncode == 0, done
    again = lab(directory, *chosen, "--from", str(log), "--results", "again.jsonl", "--json", "again.json")
    assert again.returncode == 0, again
    # The log tells how long an answer took a little otherwise than who has asked.
    assert _SECONDS.sub("", again.stdout) == _SECONDS.sub("", done.stdout)
    reports = [json.loads((directory / name).read_text()) for name in ("asked.json", "again.json")]
    assert reports[0]["cases"] == reports[1]["cases"]
    assert not [line for line in (directory / "asked.jsonl").read_text().splitlines() if '"status":"error"' in line]
    return [cell for case in reports[0]["cases"] for cell in case["cells"]]


def test_some_cases_over_a_real_codex(tmp_path: Path) -> None:
    """The smoke cases once: right and wrong answers, and none that the machinery lost."""
    cells = run_and_rescore(tmp_path, 1, "--tag", "smoke")
    words = {(cell["passed"], cell["scored"]) for cell in cells}
    assert words == {(0, 1), (1, 1)}


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [(401, "invalid_api_key", "upstream_unauthorized"), (404, "model_not_found", "model_not_found")],
    ids=["wrong-key", "unknown-model"],
)
def test_a_permanent_error_ends_a_run(tmp_path: Path, status: int, code: str, told: str) -> None:
    """Not all 340 requests are made; what has been asked is kept in the state directory, and nothing in the current."""
    with RefusingProvider(status, code) as provider:
        settings = {"CODEX_BIN": pinned_codex(), "CODEX_HOME": str(codex_home(tmp_path / "home", provider))}
        asked = lab(tmp_path, "--model", "gpt-5.2", "--concurrency", "2", **settings)
        assert asked.returncode == 1, asked
        made = len(provider.requests)
        assert 1 <= made <= 2
        (results,) = (tmp_path / "state/turnbridge/lab").iterdir()
        assert asked.stderr.splitlines()[-1] == (
            f"error: Stopped after {made} of 340 request(s), because {told} is permanent. Fix it, then run the same "
            f"command with --results {results} to continue. --keep-going sends the remaining requests anyway."
        )
        assert f"failed and are not counted: {told}:" in asked.stderr
        assert list(tmp_path.glob("*.jsonl")) == []
        some = ["--model", "gpt-5.2", "--tag", "smoke", "--repeat", "1", "--keep-going", "--results", str(results)]
        kept_going = lab(tmp_path, *some, **settings)
        assert kept_going.returncode == 100, kept_going
        smoke = sum("smoke" in case.tags for case in load_suite(SUITE).cases)
        assert len(provider.requests) == made + smoke > made + 2


def test_a_run_without_a_login_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    done = lab(tmp_path, "--model", "gpt-5.2", CODEX_BIN=pinned_codex(), CODEX_HOME=str(tmp_path / "home"))
    assert done.returncode == 1, done
    assert "codex_not_logged_in: Codex is not logged in" in done.stderr
    assert re.search(r"error: Stopped after [1-4] of 340 request\(s\), because codex_not_logged_in", done.stderr)


class WeatherProvider(Provider):
    """Calls `weather` for the city that it thinks was asked for."""

    city = "Bern"

    def action_for(self, body: Json) -> Json:
        call = {"name": "weather", "arguments": json.dumps(json.dumps({"city": self.city}))}
        written = f'{{"name":"weather","arguments":{call["arguments"]}}}'
        return {"do": "text", "pieces": [f"<tool_call>{written}</tool_call>"]}


CLIENT = """
import json, os, urllib.request
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
body = {
    "model": "gpt-5.2",
    "messages": [{"role": "user", "content": "How is it in Bern?"}],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": schema}}],
}
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
"""


def test_from_a_record_to_a_regression_in_five_commands(tmp_path: Path) -> None:
    """The commands of docs/lab.md, in their order, over a real Codex: the last one fails when the model gets worse."""
    page = (ROOT / "docs/lab.md").read_text()
    (block,) = re.findall(r"## From a record to a regression test.*?```sh\n(.*?)```", page, re.DOTALL)
    commands = [line.split("#")[0].split() for line in block.splitlines()]
    assert len(commands) == 5
    (tmp_path / "client.py").write_text(CLIENT)
    with WeatherProvider() as provider:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            "PROXY_CODEX_WORKDIR": str(tmp_path / "work"),
            "CODEX_BIN": pinned_codex(),
            "CODEX_HOME": str(codex_home(tmp_path / "home", provider)),
        }

        def run(words: list[str], code: int = 0) -> str:
            words = [sys.executable if word == "python" else word for word in words]
            assert words[0] == "turnbridge"
            done = subprocess.run(
                [sys.executable, "-m", "bridge", *words[1:]],
                cwd=tmp_path, env=env, text=True, capture_output=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == code, done
            return done.stdout + done.stderr

        run(commands[0])
        assert "gpt-5.2" in run(commands[1])
        assert "1 case(s) written" in run(commands[2])
        run(commands[3])
        run(commands[4])
        provider.city = "Basel"
        assert "regression" in run(commands[4], code=100)


@pytest.mark.deep
def test_all_cases_over_a_real_codex(tmp_path: Path) -> None:
    """Every case in three variants, twice."""
    cells = run_and_rescore(tmp_path, 2)
    assert len(cells) == len(load_suite(SUITE).cases) * len(VARIANTS)
    assert all(cell["scored"] == 2 and cell["passed"] in (0, 2) for cell in cells)
