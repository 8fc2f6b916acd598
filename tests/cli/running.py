"""The command as a process of its own, to its end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from warm import run_warm


def run_command(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`turnbridge WORDS`; whatever happens, it ends, and shows no traceback."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PROXY_API_KEY": "test-key-0123456789", **variables}
    done = run_warm(*words, env=env, text=True)
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done
