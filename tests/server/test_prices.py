"""Costs, wherever the bridge shows them: a served bridge with a table of prices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli.running import run_command
from harness import running_bridge

PRICES = """
[prices]
currency = "EUR"

[prices.models]
"mock-e*" = { input = 1000000, output = 500000 }
"""


def one_turn(client: httpx2.Client, model: str) -> dict[str, Any]:
    answer = client.post("/responses", json={"model": model, "input": "one two three"})
    assert answer.status_code == 200
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def test_a_turn_has_the_same_cost_everywhere(tmp_path: Path) -> None:
    """In /v1/usage, `turnbridge usage`, the event log and the metrics; a model without a price has none."""
    config, log = tmp_path / "bridge.toml", tmp_path / "events.ndjson"
    config.write_text(PRICES)
    with running_bridge(tmp_path, "--mock-only", "--config", str(config), "--log-events", str(log)) as bridge:
        with bridge.client() as client:
            used = one_turn(client, "mock-echo")
            one_turn(client, "mock-text")
            cost = used["input_tokens"] + 0.5 * used["output_tokens"]
            assert cost > 0
            report = client.get("/usage").json()
            metrics = client.get(f"{bridge.root}/metrics").text
        assert bridge.stop() == 0
        state = str(bridge.state)
        command = run_command("usage", "--config", str(config), XDG_STATE_HOME=state).stdout
        plain = run_command("usage", XDG_STATE_HOME=state).stdout
    assert report["currency"] == "EUR"
    assert {row["model"]: row["cost"] for row in report["data"]} == {"mock-echo": cost, "mock-text": None}
    assert report["total"]["cost"] == cost
    assert f'turnbridge_cost_total{{model="mock-echo"}} {float(cost)}' in metrics
    assert 'cost_total{model="mock-text"}' not in metrics
    assert command.splitlines()[0].split()[-1] == "EUR"
    assert {line.split()[2]: line.split()[-1] for line in command.splitlines()[1:]} == {
        "mock-echo": f"{cost:.4f}",
        "mock-text": "-",
    }
    assert "EUR" not in plain
    ends = [json.loads(line) for line in log.read_text().splitlines() if '"turn_end"' in line]
    assert [(end["payload"].get("cost"), end["payload"].get("currency")) for end in ends] == [
        (cost, "EUR"),
        (None, None),
    ]
    shown = run_command("log", "show", str(log), ends[0]["req_id"]).stdout
    assert f"{cost:.6f} EUR" in shown
    totals = json.loads(run_command("log", "stats", "--json", str(log)).stdout)
    assert totals["costs"] == {"EUR": cost}


def test_without_prices_there_are_no_costs(tmp_path: Path) -> None:
    with running_bridge(tmp_path, "--mock-only") as bridge, bridge.client() as client:
        one_turn(client, "mock-echo")
        report = client.get("/usage").json()
    assert (report["currency"], report["data"][0]["cost"], report["total"]["cost"]) == (None, None, None)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('[prices]\ncurrency = "euro"', "prices.currency: must be three capital letters, such as USD"),
        ('[prices.models]\n"x" = { input = 1 }', "prices.models.x.output: "),
        ('[prices.models]\n"x" = { input = -1, output = 1 }', "prices.models.x.input: "),
        ('[prices.models]\n"x" = { input = nan, output = 1 }', "prices.models.x.input: "),
        ('[prices.models]\n"x" = { input = 1, output = 1, outputs = 1 }', "unknown key"),
    ],
)
def test_a_faulty_table_is_refused_with_its_line(tmp_path: Path, table: str, fault: str) -> None:
    config = tmp_path / "bridge.toml"
    config.write_text(f"{table}\n")
    done = run_command("serve", "--check", "--config", str(config))
    assert done.returncode == 2
    assert fault in done.stderr
    assert f"{config}:" in done.stderr
    assert "Traceback" not in done.stderr
