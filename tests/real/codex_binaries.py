"""Where the pinned real Codex binaries are, or why they are not there. Fetched by scripts/fetch-codex."""

import os
from pathlib import Path

CURRENT = "0.163.0"
LEGACY = "0.107.0"
NEWEST = "0.169.0"

_INSIDE = {CURRENT: "codex_cli_bin/bin/codex", LEGACY: "codex", NEWEST: "bin/codex"}


def cache_dir() -> Path:
    """The same directory as in scripts/fetch-codex."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TURNBRIDGE_CACHE") or Path(caches, "turnbridge")) / "codex"


def find(version: str) -> Path | str:
    """The binary's path; or one line, fit for a skip message, on why there is none.

    TURNBRIDGE_CODEX_0_163, …_0_107 and …_0_169 name a binary to use instead of the fetched one.
    """
    variable = "TURNBRIDGE_CODEX_" + "_".join(version.split(".")[:2])
    if override := os.environ.get(variable):
        return Path(override) if os.access(override, os.X_OK) else f"{variable}={override} is not executable"
    for binary in (cache_dir() / version).glob(_INSIDE.get(version, "[bc]*/codex")):
        if os.access(binary, os.X_OK):
            return binary
    try:
        return f"Codex {version}: " + (cache_dir() / f"{version}.reason").read_text().strip()
    except OSError:
        return f"Codex {version}: not fetched: run scripts/fetch-codex"
