"""Budgets at a bridge that runs: refused, reported and settled, and still true after a restart and a kill."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli.running import run_command
from harness import ROOT, RunningBridge, running_bridge
from server.answers import ok, refusal
from server.prompted import wait_for

CONFIG = """[prices.models]
"mock-echo" = { input = 1000000, output = 1000000 }
"""
BODY = {"model": "mock-echo", "input": "one two three"}
COST = 8
"""What that answer costs: a token costs 1 USD."""
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "bridge.toml"
    path.write_text(CONFIG)
    return path


def keys(bridge: RunningBridge, *words: str) -> str:
    done = run_command("keys", *words, XDG_STATE_HOME=str(bridge.state), TZ="UTC", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    return done.stdout


def new_key(bridge: RunningBridge, name: str, *budgets: str) -> str:
    return keys(bridge, "add", name, *(f"--budget={budget}" for budget in budgets)).strip()


def turn(bridge: RunningBridge, key: str, **more: Any) -> httpx2.Response:
    with bridge.client(key=key) as client:
        return client.post("/responses", json=BODY | more)


def budgets(bridge: RunningBridge, key: str) -> list[dict[str, Any]]:
    with bridge.client(key=key) as client:
        found: list[dict[str, Any]] = ok(client.get("/usage"))["budgets"]
    return found


def test_a_key_spends_its_budget_and_is_refused(tmp_path: Path, config: Path) -> None:
    """Everywhere the same amounts; other keys are served, and the store remembers after a stop."""
    flags = ("--mock-only", "--config", str(config))
    with running_bridge(tmp_path, *flags) as bridge:
        key, free = new_key(bridge, "ci", "12USD/day", "1000000tokens/month"), new_key(bridge, "free")
        first = turn(bridge, key)
        assert ok(first)["usage"]["total_tokens"] == COST
        header = re.sub(r"reset=\d+", "reset=N", first.headers["x-bridge-budget"])
        assert re.fullmatch(r"12USD/day;left=\d+;reset=N,1000000tokens/month;left=\d+;reset=N", header)
        (money, tokens) = budgets(bridge, key)
        assert (money["spent"], money["left"], money["reserved"], money["scope"]) == (COST, 12 - COST, 0, "key")
        assert (tokens["spent"], tokens["left"], tokens["unit"]) == (COST, 1_000_000 - COST, "tokens")
        assert ok(turn(bridge, key))["status"] == "completed"
        refused = turn(bridge, key)
        assert refusal(refused, 429) == ("budget_exceeded", None)
        assert "12USD/day" in refused.json()["error"]["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 86_400
        assert refused.headers["x-should-retry"] == "false"
        assert "x-bridge-budget" not in turn(bridge, free).headers
        assert budgets(bridge, free) == []
        with bridge.client() as operator:
            metrics = operator.get(f"{bridge.root}/metrics").text
        assert re.search(r'turnbridge_budget_spent\{budget="12USD/day",key="key-\w+"\} 16.0', metrics)
        assert re.search(r'turnbridge_budget_left\{budget="12USD/day",key="key-\w+"\} 0.0', metrics)
    with running_bridge(tmp_path, *flags) as bridge:
        assert refusal(turn(bridge, key), 429)[0] == "budget_exceeded"
        assert [each["spent"] for each in budgets(bridge, key)] == [2 * COST, 2 * COST]
        shown = json.loads(keys(bridge, "show", "ci", "--json", "--config", str(config)))
        assert [each["spent"] for each in shown["budgets"]] == [2 * COST, 2 * COST]
        assert "12USD/day (0 left)" in re.sub(r"\s+", " ", keys(bridge, "list", "--config", str(config)))


def test_a_killed_bridge_keeps_what_it_has_settled(tmp_path: Path) -> None:
    """With a budget per hour, whose rows have the hour; /v1/usage still has one row for the day."""
    with running_bridge(tmp_path, "--mock-only") as bridge:
        key = new_key(bridge, "ci", "10tokens/hour")
        assert ok(turn(bridge, key))["status"] == "completed"

        def spent() -> bool:
            shown = json.loads(keys(bridge, "show", "ci", "--json"))
            return bool(shown["budgets"][0]["spent"] == COST)

        wait_for(spent, "the row is written")
        bridge.stop(signal.SIGKILL)
    with running_bridge(tmp_path, "--mock-only") as bridge:
        assert [each["spent"] for each in budgets(bridge, key)] == [COST]
        assert ok(turn(bridge, key))["status"] == "completed"
        assert refusal(turn(bridge, key), 429)[0] == "budget_exceeded"
        with bridge.client(key=key) as client:
            (row,) = ok(client.get("/usage"))["data"]
        assert (len(row["day"]), row["requests"], row["total_tokens"]) == (10, 2, 2 * COST)


def test_all_keys_share_a_budget(tmp_path: Path, config: Path) -> None:
    """Only the operator sees what is left of it."""
    config.write_text(f'{CONFIG}\n[budgets]\nall = ["12USD/week"]\n')
    with running_bridge(tmp_path, "--mock-only", "--config", str(config)) as bridge:
        one, two = new_key(bridge, "one"), new_key(bridge, "two")
        assert "x-bridge-budget" not in turn(bridge, one).headers
        assert ok(turn(bridge, two))["status"] == "completed"
        for key in (one, two):
            refused = turn(bridge, key)
            assert refusal(refused, 429)[0] == "budget_exceeded"
            assert "all keys together" in refused.json()["error"]["message"]
            assert budgets(bridge, key) == []
        with bridge.client() as operator:
            (shared,) = ok(operator.get("/usage"))["budgets"]
        assert (shared["scope"], shared["spent"], shared["left"]) == ("all", 2 * COST, 0)


def test_money_needs_a_price(tmp_path: Path, config: Path) -> None:
    """A model without one cannot be used past a budget in money; tokens need none."""
    with running_bridge(tmp_path, "--mock-only", "--config", str(config)) as bridge:
        dollars, euros = new_key(bridge, "dollars", "5USD/day"), new_key(bridge, "euros", "5EUR/day")
        assert refusal(turn(bridge, dollars, model="mock-text"), 403)[0] == "model_without_price"
        assert refusal(turn(bridge, euros), 403)[0] == "budget_currency_mismatch"
        assert ok(turn(bridge, new_key(bridge, "tokens", "5tokens/day"), model="mock-text"))["status"] == "completed"


@pytest.mark.parametrize(
    ("budget", "fault"),
    [
        ("5USD", "is not a budget; write 5USD/day"),
        ("5usd/day", "is not a budget"),
        ("0tokens/day", "more than zero"),
        ("1.5tokens/day", "has no fraction"),
        ("1USD/year", "is not a budget"),
    ],
)
def test_a_faulty_budget_is_refused(tmp_path: Path, budget: str, fault: str) -> None:
    """By the command, and in the file with its line."""
    done = run_command("keys", "add", "ci", "--budget", budget, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert fault in done.stderr
    assert not (tmp_path / "turnbridge/keys.json").exists()
    config = tmp_path / "bridge.toml"
    config.write_text(f'[budgets]\nall = ["{budget}"]\n')
    done = run_command("serve", "--check", "--mock-only", "--config", str(config))
    assert done.returncode == 2
    assert fault in done.stderr
    assert f"{config}:" in done.stderr


def test_the_example_of_the_documentation(tmp_path: Path, config: Path) -> None:
    """docs/operations.md shows what `keys show` prints, and the header."""
    section = OPERATIONS.partition("\n## Budgets\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```text\n(.*?)```", section, re.S)
    with running_bridge(tmp_path, "--mock-only", "--config", str(config)) as bridge:
        key = new_key(bridge, "ci", "25USD/day", "2000000tokens/month")
        ok(turn(bridge, key, max_output_tokens=3))
        header = ok_headers(turn(bridge, key, max_output_tokens=3))
        show = ("show", "ci", "--config", str(config))
        wait_for(lambda: "16 spent" in keys(bridge, *show), "both turns are written")
        shown = keys(bridge, *show)
        refused = [turn(bridge, key), turn(bridge, key), turn(bridge, key)][-1].json()["error"]["message"]
    printed = (shown, f"x-bridge-budget: {header}\n", f"{refused}\n")
    assert list(map(timeless, blocks)) == list(map(timeless, printed))


def ok_headers(answer: httpx2.Response) -> str:
    assert answer.status_code == 200
    return str(answer.headers["x-bridge-budget"])


def timeless(text: str) -> str:
    """Without what differs between two days."""
    text = re.sub(r"key-[0-9a-f]{12}", "LABEL", text)
    text = re.sub(r"\d{4}-\d\d-\d\d", "DATE", text)
    return re.sub(r"reset=\d+", "reset=N", text)
