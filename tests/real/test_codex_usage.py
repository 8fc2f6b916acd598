"""A Codex behind the bridge asks it for the limits of its account."""

from __future__ import annotations

import json
import os
import subprocess
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from harness import KEY
from real import codex_binaries
from real.rig import CURRENT, NEWEST, RESPONSES, Target, UseRig
from server.prompted import wait_for

HEADERS = {
    "x-codex-primary-used-percent": "42",
    "x-codex-primary-window-minutes": "300",
    "x-codex-primary-reset-at": "2000000000",
}


def encoded(claims: dict[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()


def home_of_client(directory: Path, base_url: str) -> Path:
    """A CODEX_HOME whose login has the bridge's key as its access token."""
    account = {"chatgpt_account_id": "account", "chatgpt_user_id": "user", "chatgpt_plan_type": "plus"}
    claims = {"exp": 4102444800, "email": "ada@example.org", "https://api.openai.com/auth": account}
    id_token = f"{encoded({'alg': 'none'})}.{encoded(claims)}.signature"
    tokens = {"id_token": id_token, "access_token": KEY, "refresh_token": "unused", "account_id": "account"}
    directory.mkdir()
    login = {"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": "2026-11-19T00:00:00Z"}
    (directory / "auth.json").write_text(json.dumps(login))
    (directory / "config.toml").write_text(f'chatgpt_base_url = "{base_url}"\n')
    return directory


def limits_read_by(binary: Path, home: Path) -> dict[str, Any]:
    """The result of account/rateLimits/read, which Codex answers from its backend."""
    calls = [
        {"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "test", "version": "1"}}},
        {"method": "initialized"},
        {"id": 2, "method": "account/rateLimits/read"},
    ]
    environment = {"CODEX_HOME": str(home), "HOME": str(home), "PATH": os.environ["PATH"]}
    with subprocess.Popen(
        [binary, "app-server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=environment, text=True,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("".join(f"{json.dumps(call)}\n" for call in calls))
        child.stdin.flush()
        replies = map(json.loads, child.stdout)
        reply = next(each for each in replies if each.get("id") == 2)
        child.kill()
    assert "result" in reply, reply
    result: dict[str, Any] = reply["result"]
    return result


@pytest.mark.parametrize("path", ["", "/backend-api"])
@pytest.mark.parametrize("client", [CURRENT, NEWEST], ids=str)
def test_codex_reads_the_limits_of_the_account(use: UseRig, tmp_path: Path, client: Target, path: str) -> None:
    binary = codex_binaries.find(client.version)
    if isinstance(binary, str):
        pytest.skip(binary)
    rig = use(CURRENT)
    assert rig.ask(RESPONSES, {"do": "text", "headers": HEADERS}).status == 200
    wait_for(lambda: rig.client.get("/rate-limits").json()["known"], "the limits")
    limits = limits_read_by(binary, home_of_client(tmp_path / "client", f"{rig.bridge.root}{path}"))["rateLimits"]
    assert limits["primary"]["windowDurationMins"] == 300
    assert limits["primary"]["resetsAt"] == 2000000000
    assert limits["primary"]["usedPercent"] in (42, 43)
