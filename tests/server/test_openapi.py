"""A running bridge against its own description: schemathesis generates requests and checks every answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import KEY, RunningBridge, running_bridge

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge of its own: generated requests leave traces."""
    with running_bridge(tmp_path_factory.mktemp("described"), "--mock-only", PROXY_STORE="memory") as running:
        yield running


def conforms(bridge: RunningBridge, directory: Path, *options: str) -> None:
    """No answer is a server error, and the document describes each."""
    program = Path(sys.executable).with_name("schemathesis")
    address = f"{bridge.root}/openapi.json"
    key = f"Authorization: Bearer {KEY}"
    checks = f"--checks={','.join(CHECKS)}"
    command: list[str | Path] = [
        program,
        "run",
        address,
        "-H",
        key,
        checks,
        "--seed=1",
        "--request-timeout=60",
        *options,
    ]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "Tested: " in done.stdout


def test_answers_are_as_described(bridge: RunningBridge, tmp_path: Path) -> None:
    """The examples of the document, and some generated requests for each operation."""
    conforms(bridge, tmp_path, "--phases=examples,fuzzing", "--max-examples=1")


@pytest.mark.deep
def test_answers_are_as_described_in_depth(bridge: RunningBridge, tmp_path: Path) -> None:
    """Every way to break each rule of the document, many generated requests, and sequences of them."""
    conforms(bridge, tmp_path, "--max-examples=50")
