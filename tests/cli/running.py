"""The command as a process of its own, to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness import ROOT


def run_command(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`codex-bridge WORDS`; whatever happens, it ends, and shows no traceback."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bridge", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PROXY_API_KEY": "test-key-0123456789", **variables},
        timeout=60,
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done
