"""Breakers of backends, slots that move, and chains. The clock is one that jumps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
import trio.testing
from harness import KEY, RunningBridge, running_bridge
from server.prompted import wait_for
from server.test_admission import Hall, made

from bridge.app.fallback import COOL_DOWN, FAILURES, LONGEST, Breakers, Fallbacks, is_worth
from bridge.errors import (
    BackendCrashed,
    BackendTimeout,
    BridgeError,
    ConfigError,
    InvalidRequest,
    KeyLimitReached,
    NotReady,
    Overloaded,
    SlowClient,
    Unauthorized,
    UpstreamError,
)
from bridge.server.gate import label_of
from bridge.settings.file import read_config
from bridge.store.key_store import KeyFile

Clock = trio.testing.MockClock


def fail(breakers: Breakers, times: int = FAILURES, wait: float | None = None) -> None:
    for _ in range(times):
        assert breakers.admits("codex")
        breakers.failed("codex", wait)


async def test_a_backend_rests_after_failures_in_a_row(autojump_clock: Clock) -> None:
    breakers = Breakers()
    fail(breakers, FAILURES - 1)
    breakers.works("codex")
    fail(breakers, FAILURES - 1)
    assert breakers.resting() == {"codex": False}
    fail(breakers, 1)
    assert breakers.resting() == {"codex": True}
    assert not breakers.admits("codex")
    assert breakers.admits("claude")
    await trio.sleep(COOL_DOWN - 1)
    assert not breakers.admits("codex")


@pytest.mark.parametrize(("wait", "rest"), [(None, COOL_DOWN), (1, COOL_DOWN), (600, 600), (10**6, LONGEST)])
async def test_one_request_tries_it_after_its_rest(autojump_clock: Clock, wait: float | None, rest: float) -> None:
    breakers = Breakers()
    fail(breakers, wait=wait)
    await trio.sleep(rest)
    assert breakers.admits("codex")
    assert not breakers.admits("codex"), "others wait for its end"
    breakers.failed("codex", None)
    assert not breakers.admits("codex"), "one failure is enough now"
    await trio.sleep(COOL_DOWN)
    assert breakers.admits("codex")
    breakers.undecided("codex")
    assert breakers.admits("codex"), "the client of the one before it has gone"
    breakers.works("codex")
    assert breakers.admits("codex")
    assert breakers.resting() == {}


async def test_a_slot_moves_to_another_backend(autojump_clock: Clock, tmp_path: Path) -> None:
    """The key keeps it, even if others with that key wait; the backend's is given to them."""
    label = made(tmp_path / "keys.json", max_turns=1)
    hall = Hall(tmp_path / "keys.json", max_turns=1)
    await hall.keyring.refresh()
    slot = await hall.enter(label)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hall.refusal, label)
        nursery.start_soon(hall.enter)
        await trio.testing.wait_all_tasks_blocked()
        moved = hall.admission.move(slot, label, "claude", 1, hall.cut.append)
        assert hall.admission.running == 2
        await trio.testing.wait_all_tasks_blocked()
        assert hall.admission.waiting == 1
    slot.free()
    assert hall.admission.running == 2
    moved.free()
    assert hall.admission.running == 1


async def test_a_full_backend_takes_no_slot_that_moves(autojump_clock: Clock) -> None:
    hall = Hall(max_turns=1)
    other = await hall.enter(backend="claude")
    slot = await hall.enter()
    with pytest.raises(Overloaded):
        hall.admission.move(slot, label_of("x"), "claude", 1, hall.cut.append)
    assert hall.admission.running == 2
    other.free()
    moved = hall.admission.move(None, label_of("x"), "claude", 1, hall.cut.append)
    assert hall.admission.running == 2
    moved.free()
    slot.free()
    assert hall.admission.running == 0


def test_chains_are_found_by_patterns() -> None:
    fallbacks = Fallbacks({"gpt-5": ["claude", "qwen"], "gpt-5.5": ["gpt-5.5-mini", "claude"], "*": ["qwen"]})
    assert fallbacks.of("gpt-5.1") == ("claude", "qwen")
    assert fallbacks.of("GPT-5.5-mini") == ("claude",), "not itself"
    assert fallbacks.of("fast", "gpt-5.5") == ("qwen",), "the requested name first"
    assert fallbacks.of("qwen") == ()
    assert Fallbacks().of("gpt-5") == ()


WORTH: list[Callable[[str], BridgeError]] = [
    Overloaded,
    NotReady,
    BackendCrashed,
    BackendTimeout,
    UpstreamError,
    lambda text: UpstreamError(text, code="insufficient_quota", http_status=429),
]
NOT_WORTH: list[Callable[[str], BridgeError]] = [
    InvalidRequest,
    KeyLimitReached,
    Unauthorized,
    SlowClient,
    BridgeError,
    lambda text: NotReady(text, code="shutdown_initiated"),
    lambda text: UpstreamError(text, code="upstream_unauthorized", http_status=401),
    lambda text: BackendCrashed(text).after_effects(),
]


def test_what_is_worth_a_fallback() -> None:
    assert [is_worth(make("x")) for make in WORTH] == [True] * len(WORTH)
    assert [is_worth(make("x")) for make in NOT_WORTH] == [False] * len(NOT_WORTH)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('"gpt-5" = ["GPT-5"]', "cycle"),
        ('"gpt-5" = ["claude", "Claude"]', "twice"),
        ('"gpt-5" = []', "at least one"),
        ('"" = ["claude"]', "empty pattern"),
    ],
)
def test_a_wrong_chain_is_refused_at_the_start(tmp_path: Path, line: str, reason: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[routing.fallback]\n{line}\n")
    with pytest.raises(ConfigError, match=f"config.toml:2: routing.fallback.*{reason}"):
        read_config(file)


def config_of(directory: Path, chain: str) -> str:
    """Two backends that nothing listens for, and mock models behind them."""
    file = directory / "config.toml"
    down = '[backends.{0}]\ntype = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n'
    file.write_text(
        "".join(map(down.format, ("one", "two")))
        + '[routing]\ndefault = "mock"\n[routing.patterns]\none = ["one"]\ntwo = ["two"]\n'
        + f"[routing.fallback]\none = {chain}\n"
    )
    return f"--config={file}"


def answered(bridge: RunningBridge, key: str) -> tuple[int, str | None]:
    with bridge.client(key=key) as client:
        answer = client.post("/responses", json={"model": "one", "input": "hi"})
    return answer.status_code, answer.headers.get("x-bridge-answered-by")


def test_a_model_that_the_key_must_not_use_is_skipped(tmp_path: Path) -> None:
    """A key restricted to some models gets no other one by a failure."""
    store = tmp_path / "state" / "turnbridge" / "keys.json"
    store.parent.mkdir(parents=True)
    now = datetime.now(UTC)
    free = KeyFile(store).add("free", now=now)[0]
    strict = KeyFile(store).add("strict", now=now, models=("one", "two"))[0]
    with running_bridge(tmp_path, config_of(tmp_path, '["two", "mock-echo"]')) as bridge:
        assert answered(bridge, free) == (200, "mock-echo")
        assert answered(bridge, strict) == (502, "two")


def test_a_fallback_that_leads_nowhere_is_reported(tmp_path: Path) -> None:
    with running_bridge(tmp_path, config_of(tmp_path, '["claude-sonnet-4-5"]')) as bridge:
        assert answered(bridge, KEY) == (502, None)
        wait_for(lambda: "The fallback to 'claude-sonnet-4-5' has no effect" in bridge.stderr.read_text(), "a warning")
