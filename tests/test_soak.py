"""The soak finds what it looks for: a short one keeps every promise, and a log that was tampered with breaks them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import ROOT

pytestmark = pytest.mark.deep

RUN = [sys.executable, str(ROOT / "scripts/soaking/run.py")]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a soak of a few seconds left behind."""
    directory = tmp_path_factory.mktemp("soak") / "kept"
    options = ["--minutes", "0.1", "--chaos", "--seed", "1", "--keep", str(directory)]
    done = subprocess.run([*RUN, *options], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every promise was kept" in done.stdout
    assert "0 of 6 s" in done.stderr
    return directory


def tampered(directory: Path, change: Callable[[list[str]], list[str]]) -> str:
    """What is found in the log once its lines have been changed; they are put back."""
    files = sorted((directory / "log").iterdir())
    before = [file.read_bytes() for file in files]
    lines = [f"{line}\n" for line in b"".join(before).decode().split("\n") if line]
    try:
        for file in files[1:]:
            file.unlink()
        files[0].write_text("".join(change(lines)))
        done = subprocess.run(
            [*RUN, "--check", str(directory)], capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        for file, data in zip(files, before, strict=True):
            file.write_bytes(data)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def index_of(lines: list[str], *words: str) -> int:
    return next(number for number, line in enumerate(lines) if all(word in line for word in words))


def test_an_end_that_is_missing_is_found(kept: Path) -> None:
    def change(lines: list[str]) -> list[str]:
        del lines[index_of(lines, '"kind":"turn_end"', '"completed"')]
        return lines

    found = tampered(kept, change)
    assert ": 0 ends" in found
    assert "1 record(s) are missing" in found
    assert "1 turns have begun and not ended" in found


def test_something_after_the_end_is_found(kept: Path) -> None:
    def change(lines: list[str]) -> list[str]:
        return [*lines, lines[index_of(lines, '"kind":"client_start"')]]

    assert "after its end client_start" in tampered(kept, change)


def test_another_outcome_than_the_client_saw_is_found(kept: Path) -> None:
    def change(lines: list[str]) -> list[str]:
        number = index_of(lines, '"kind":"turn_end"', '"outcome":"completed"')
        lines[number] = lines[number].replace('"outcome":"completed"', '"outcome":"cancelled"')
        return lines

    assert "the client saw 'completed', the log says 'cancelled'" in tampered(kept, change)


def test_a_secret_is_found(kept: Path) -> None:
    def change(lines: list[str]) -> list[str]:
        number = index_of(lines, '"kind":"client_request"')
        lines[number] = lines[number].replace('"path"', '"leak":"soak-key-0123456789abcdef","path"')
        return lines

    assert "holds the secret soak-key-01234…" in tampered(kept, change)


def test_a_crash_that_no_child_explains_is_found(kept: Path) -> None:
    def change(lines: list[str]) -> list[str]:
        return [line for line in lines if '"kind":"backend_exit"' not in line]

    assert "ended as 'backend_crashed', expected" in tampered(kept, change)
