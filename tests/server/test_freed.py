"""What a request held is given back when it is over, and not only when Python's collector comes by."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import resident, running_bridge

MEGABYTES = 4
COUNT = 25


@pytest.mark.parametrize("model", ["mock-text", "no-such-model"])
def test_large_requests_leave_nothing_behind(tmp_path: Path, model: str) -> None:
    """Many requests of four megabytes, answered or refused, need no more memory than a few of them at a time.

    What is free may lie scattered, so that a part of it stays with the process for a while.
    """
    with running_bridge(tmp_path, "--mock-only", PROXY_STORE="off") as bridge, bridge.client() as client:
        body = {"model": model, "input": "x" * (MEGABYTES * 1_000_000)}
        for _ in range(3):
            client.post("/responses", json=body)
        before = resident(bridge)
        after = []
        for _ in range(COUNT):
            assert client.post("/responses", json=body).status_code == (200 if model == "mock-text" else 400)
            after.append(resident(bridge))
        assert min(after[-5:]) - before < COUNT * MEGABYTES / 2
