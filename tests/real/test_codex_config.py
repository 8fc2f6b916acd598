"""A real Codex whose config.toml it cannot use: the operator and the client learn why."""

from __future__ import annotations

from pathlib import Path

import pytest
from real.rig import CURRENT, LEGACY, NEWEST, RESPONSES, TEXT_HISTORY, Target, start_rig

NO_PROVIDER = 'model_provider = "nope"\n'
OLD_PROTOCOL = """\
model_provider = "house"

[model_providers.house]
name = "house"
base_url = "http://127.0.0.1:9/v1"
wire_api = "chat"
"""


@pytest.mark.parametrize("target", [LEGACY, TEXT_HISTORY, CURRENT, NEWEST], ids=str)
@pytest.mark.parametrize(
    ("config", "reason"),
    [("model = ", "Invalid value"), (NO_PROVIDER, "`nope` not found"), (OLD_PROTOCOL, "wire_api")],
    ids=["toml", "provider", "wire_api"],
)
def test_a_config_that_codex_ignores(tmp_path: Path, target: Target, config: str, reason: str) -> None:
    """Nothing is asked of another provider: the error names the cause, but no path; the log says so once, and
    /healthz is degraded.
    """
    home = tmp_path / "own"
    home.mkdir()
    (home / "config.toml").write_text(config)
    with start_rig(tmp_path, target, CODEX_HOME=str(home)) as rig:
        answers = [rig.ask(RESPONSES, "hello") for _ in range(2)]
        health = rig.client.get(f"{rig.bridge.root}/healthz").json()
        ready = rig.client.get(f"{rig.bridge.root}/readyz")
    assert {(answer.status, answer.error["code"]) for answer in answers} == {(401, "codex_misconfigured")}
    assert reason in answers[0].error["message"]
    assert str(tmp_path) not in answers[0].error["message"]
    assert health == {"status": "degraded", "reason": "codex_config_invalid"}
    assert ready.status_code == 200
    (line,) = [line for line in rig.bridge.stderr.read_text().splitlines() if "Invalid configuration" in line]
    assert line.startswith("WARNING ")
    assert reason in line


def test_a_good_config_is_no_warning(tmp_path: Path) -> None:
    """What Codex says of its sandbox at every start is not passed on."""
    with start_rig(tmp_path, CURRENT) as rig:
        assert rig.ask(RESPONSES, "hello").status == 200
        assert rig.client.get(f"{rig.bridge.root}/healthz").json()["status"] == "ok"
    assert "warns about" not in rig.bridge.stderr.read_text()
