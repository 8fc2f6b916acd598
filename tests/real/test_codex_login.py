"""A real Codex in the bridge's own home: the login that it writes is the user's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from real import codex_binaries

from bridge.appserver.codex_home import prepare_child_home, read_codex_home
from bridge.appserver.process import child_environment

KEY = "sk-canary-0123456789abcdef"


@pytest.mark.parametrize("version", [codex_binaries.LEGACY, codex_binaries.CURRENT, codex_binaries.NEWEST])
def test_what_codex_writes_to_auth_json_reaches_the_users_home(tmp_path: Path, version: str) -> None:
    """It writes through the link, also over an older login, and leaves the link where it is."""
    binary = codex_binaries.find(version)
    if isinstance(binary, str):
        pytest.skip(binary)
    user = tmp_path / "user"
    user.mkdir()
    home = prepare_child_home(read_codex_home(user), tmp_path / "state")
    for key in (KEY, f"{KEY}-new"):
        done = subprocess.run(
            [binary, "login", "--with-api-key"],
            input=key.encode(),
            env=child_environment(os.environ, extra={"CODEX_HOME": str(home), "HOME": str(tmp_path)}),
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads((user / "auth.json").read_text())["OPENAI_API_KEY"] == key
        assert (home / "auth.json").readlink() == user / "auth.json"
