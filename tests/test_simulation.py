"""`scripts/simulate`: a short run keeps every promise, a history is its seed, a planted fault is found and shrunk."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from harness import ROOT


def simulate(*options: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Run the script with this interpreter."""
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts/simulation/run.py"), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


def test_sixty_histories_keep_every_promise() -> None:
    done = simulate("--count", "60", "--processes", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every promise was kept" in done.stdout
    assert re.match(r"60 histories in .* (5\d|60) distinct\n", done.stdout)


def test_a_history_is_its_seed() -> None:
    """Nothing but the seed decides: neither the order of sets, nor what ran before."""
    first, second = (simulate("--replay", "6", hash_seed=seed) for seed in ("1", "2"))
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout == second.stdout
    assert "completed" in first.stdout
    assert simulate("--seed", "7").stdout != simulate("--seed", "8").stdout


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("5 % of slots leak", "slots are taken"),
        ("a dead child does not fail its turns", "had to end before|heard of|the history is not over|ended as"),
        ("a delta goes to another turn", "which its child never said"),
        ("a client that leaves is not noticed", "the child stopped"),
    ],
)
def test_a_planted_fault_is_found(fault: str, seen: str) -> None:
    done = simulate("--count", "60", "--processes", "1", "--plant", fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(seen, done.stdout)


def test_a_failing_history_is_shrunk_to_a_few_decisions() -> None:
    found = simulate("--count", "20", "--processes", "1", "--plant", "5 % of slots leak")
    seed = found.stdout.partition("seeds: ")[2].split()[0]
    done = simulate("--replay", seed, "--plant", "5 % of slots leak")
    assert done.returncode == 1, done.stdout + done.stderr
    before = int(re.search(r"with (\d+) decisions; shrinking", done.stdout)[1])  # type: ignore[index]
    after = int(re.search(r"differ from the default \((\d+)\)", done.stdout)[1])  # type: ignore[index]
    assert after <= 12 < before
    assert "VIOLATION" in done.stdout
