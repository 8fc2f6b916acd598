"""axe-core, which finds what makes a page hard to use for people with disabilities. npm fetches it into the cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from browser.chromium import Page

NODE = Path(__file__).with_name("node")
"""The pinned version, with its checksum."""
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def axe_source() -> str:
    """The checker's script. Skips the test where it is not in the cache and there is no npm."""
    lock_file = NODE / "package-lock.json"
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(os.environ.get("TURNBRIDGE_CACHE") or Path(caches, "turnbridge")) / "clients"
    final = cache / f"axe-{zlib.crc32(lock_file.read_bytes()):08x}"
    script = final / "node_modules" / "axe-core" / "axe.min.js"
    cache.mkdir(parents=True, exist_ok=True)
    # Several processes of the tests may find none at the same time.
    with open(cache / ".axe.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            npm = shutil.which("npm")
            if npm is None:
                pytest.skip("axe-core is not in the cache, and there is no npm to fetch it")
            with tempfile.TemporaryDirectory(dir=cache, prefix=".axe-") as temporary:
                for name in ("package.json", "package-lock.json"):
                    shutil.copy(NODE / name, temporary)
                quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
                done = subprocess.run([npm, "ci", *quiet], cwd=temporary, capture_output=True, text=True, timeout=300)
                assert done.returncode == 0, f"npm ci failed in a copy of {NODE}: {done.stderr.strip()[-400:]}"
                shutil.rmtree(final, ignore_errors=True)
                shutil.copytree(temporary, final)
    return script.read_text(encoding="utf-8")


def violations(page: Page, source: str) -> list[dict[str, Any]]:
    """What the checker objects to in the page as it is now: the rule, and the elements."""
    if page.run("typeof window.axe") == "undefined":
        page.run(f"{source}; true")
    found: list[dict[str, Any]] = page.run(
        f"axe.run(document, {{runOnly: {list(RULES)}, resultTypes: ['violations']}}).then((result) =>"
        " result.violations.map((each) => ({rule: each.id, help: each.help,"
        " nodes: each.nodes.slice(0, 5).map((node) => [node.target.join(' '), node.failureSummary])})))"
    )
    return found
