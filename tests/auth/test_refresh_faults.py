"""A refresh token works once: whatever happens after it was used, the new login is not lost."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from auth.login_rig import Rig, rigged
from auth.mounts import MOUNTED_FILE, MOUNTED_FILE_IN_A_READ_ONLY_DIRECTORY, within_mounts
from auth.test_refresh_at_once import REFRESHER
from server.prompted import wait_for
from upstream.answers import Gate
from upstream.chatgpt import ChatGPT, serving_in_thread
from upstream.tokens import auth_json, write_auth_json
from warm import WarmProcess

from bridge.errors import BridgeError
from bridge.store.private_files import MAX_FILE
from bridge.upstream.codex import NotLoggedIn
from bridge.upstream.login import Login

# Whoever asked leaves


async def test_a_refresh_whose_callers_have_left_is_stored(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        login = rig.login()
        old = login.current()
        gate = rig.chatgpt.token_gate = Gate()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(login.refresh, old)
            await rig.chatgpt.until(lambda: gate.held)
            nursery.cancel_scope.cancel()
            gate.open()
        assert {rig.on_disk().token} == rig.chatgpt.logins.access
        assert await login.refresh(old) == rig.on_disk()
        assert rig.chatgpt.logins.uses == {old.refresh_token: 1}


class CancelAtStep(trio.abc.Instrument):
    """Cancels a task when it has run for the n-th time."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self.steps_left = step
        self._scope = scope
        self._task = trio.lowlevel.current_task()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self.steps_left -= 1
            if self.steps_left == 0:
                self._scope.cancel()


async def refresh_until_step(rig: Rig, step: int) -> bool:
    """Leave a refresh at this step of it while two others wait for it; whether it took that many steps."""
    login = rig.login()
    old = login.current()
    got: list[Login] = []
    reached = False

    async def leave() -> None:
        nonlocal reached
        with trio.CancelScope() as scope:
            cancel = CancelAtStep(step, scope)
            trio.lowlevel.add_instrument(cancel)
            for _ in range(2):
                nursery.start_soon(stay)  # they run as soon as this one waits
            try:
                await login.refresh(old)
            finally:
                trio.lowlevel.remove_instrument(cancel)
        reached = cancel.steps_left <= 0

    async def stay() -> None:
        got.append(await login.refresh(old))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
    assert got == [rig.on_disk()] * 2
    assert {rig.on_disk().token} == rig.chatgpt.logins.access
    assert rig.chatgpt.logins.uses == {old.refresh_token: 1}
    return reached


async def test_a_refresh_may_be_left_at_any_moment(tmp_path: Path) -> None:
    """At each of its steps in turn: the token is used once, and everybody else gets the new login."""
    step, reached = 0, True
    while reached:
        step += 1
        async with rigged(tmp_path / str(step)) as rig:
            reached = await refresh_until_step(rig, step)
    assert step > 5


# The file cannot be written as usual


@pytest.mark.parametrize("mounts", [MOUNTED_FILE, MOUNTED_FILE_IN_A_READ_ONLY_DIRECTORY], ids=["file", "directory"])
def test_a_login_in_a_file_that_is_mounted_is_refreshed(tmp_path: Path, mounts: str) -> None:
    """Also where no lock file can be put beside it."""
    with serving_in_thread() as chatgpt:
        home = chatgpt.home(tmp_path)
        path = home / "auth.json"
        before = path.stat()
        told = within_mounts(
            mounts, path, sys.executable, "-c", REFRESHER, home, chatgpt.token_url, said="go\n"
        ).splitlines()
        assert told[:2] == ["ready", "asking"]
        assert set(told[2:]) == {on_disk(home)} == chatgpt.logins.access
        assert path.stat().st_ino == before.st_ino
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert chatgpt.faults == []


@pytest.mark.parametrize("depth", [260, 2000])
async def test_a_file_is_written_back_whole_or_its_token_is_not_used(tmp_path: Path, depth: int) -> None:
    """However deep the members are nested that nobody here knows."""
    async with rigged(tmp_path, deep=None) as rig:
        before = rig.path.read_text().replace('"deep": null', f'"deep": {"[" * depth}{"]" * depth}')
        rig.path.write_text(before)
        login = rig.login()
        try:
            new = await login.refresh(login.current())
        except NotLoggedIn:
            assert rig.path.read_text() == before
            assert rig.chatgpt.token_requests == []
        else:
            assert login.current() == new
            assert rig.path.read_text().count("[") == depth


async def test_a_file_that_would_become_too_large_to_read_is_not_written(tmp_path: Path) -> None:
    """It has no spaces, and with ours nobody could read it: that is told before the token is used."""
    async with rigged(tmp_path, numbers=None) as rig:
        content = json.loads(rig.path.read_bytes()) | {"numbers": [0] * (MAX_FILE // 4)}
        rig.path.write_text(json.dumps(content, separators=(",", ":")))
        error, _ = await rig.refused()
        assert isinstance(error, NotLoggedIn)
        assert "too large" in error.message
        assert rig.chatgpt.token_requests == []


async def test_a_login_that_is_a_loop_of_links_is_reported(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        login = rig.login()
        old = login.current()
        rig.path.unlink()
        rig.path.symlink_to(rig.path)
        with pytest.raises(BridgeError) as caught:
            await login.refresh(old)
        assert str(tmp_path) not in caught.value.message
        assert rig.chatgpt.token_requests == []


# Others change the file while the endpoint is asked


async def test_a_token_that_codex_itself_has_used_loses_no_login(tmp_path: Path) -> None:
    """Codex knows nothing of the lock; the file is read again before anybody is told to log in."""
    async with rigged(tmp_path) as rig:
        rig.chatgpt.logins.states[rig.on_disk().refresh_token or ""] = "used"
        codex_writes = auth_json("chatgpt", rig.chatgpt.logins)
        assert await rig.changed_while_asking(lambda: write_auth_json(rig.home, codex_writes)) == rig.on_disk()
        assert rig.on_disk().token == codex_writes["tokens"]["access_token"]


async def test_a_new_login_during_a_refresh_is_kept(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        anew = {"access_token": "anew", "refresh_token": "anew-too", "id_token": "anew-as-well"}
        logged_in = auth_json("chatgpt", rig.chatgpt.logins, anew)
        got = await rig.changed_while_asking(lambda: write_auth_json(rig.home, logged_in))
        assert got == rig.on_disk()
        assert json.loads(rig.path.read_bytes()) == logged_in


async def test_a_logout_during_a_refresh_lasts(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        got = await rig.changed_while_asking(rig.path.unlink)
        assert isinstance(got, NotLoggedIn)
        assert not rig.path.exists()


@pytest.mark.parametrize("written_so_far", [b"", b'{"tokens": {"access'], ids=["nothing", "half"])
async def test_a_file_that_is_being_written_loses_no_login(tmp_path: Path, written_so_far: bytes) -> None:
    """Codex writes in place: for a moment there is no login in it, and the answer that comes then is kept."""
    async with rigged(tmp_path) as rig:
        got = await rig.changed_while_asking(lambda: rig.path.write_bytes(written_so_far))
        assert got == rig.on_disk()
        assert {rig.on_disk().token} == rig.chatgpt.logins.access


# A whole run


def on_disk(home: Path) -> str:
    """The access token in a CODEX_HOME."""
    token: str = json.loads((home / "auth.json").read_bytes())["tokens"]["access_token"]
    return token


def running(chatgpt: ChatGPT, home: Path) -> WarmProcess:
    """`exec --json` with the login in this home."""
    return WarmProcess(
        ["exec", "--backend", "codex", "--json", "--prompt", "hi"],
        env={"PATH": os.environ["PATH"], "HOME": str(home.parent), **chatgpt.environment(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def main_thread(process: WarmProcess) -> dict[str, str]:
    """What the system says of it: its `State`, how often it has gone to sleep, and so on."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def send(process: WarmProcess, number: signal.Signals) -> None:
    """Signal a run that waits, until it has taken that in and waits again, or is gone."""
    wait_for(lambda: main_thread(process)["State"].startswith("S"), "it waits")
    slept = main_thread(process)["voluntary_ctxt_switches"]
    process.send_signal(number)

    def has_taken_it() -> bool:
        now = main_thread(process)
        asleep_again = now["State"].startswith("S") and now.get("voluntary_ctxt_switches") != slept
        return asleep_again or now["State"].startswith("Z")

    wait_for(has_taken_it, "it waits again")


@pytest.mark.parametrize(
    "numbers",
    [
        [signal.SIGINT],
        [signal.SIGTERM],
        [signal.SIGHUP],
        [signal.SIGINT, signal.SIGTERM],
        [signal.SIGTERM, signal.SIGTERM],
    ],
    ids=lambda numbers: " ".join(number.name for number in numbers),
)
def test_a_run_that_is_stopped_while_it_refreshes_keeps_the_login(
    tmp_path: Path, numbers: list[signal.Signals]
) -> None:
    """It waits for the endpoint's answer, whoever is impatient, asks nothing more, and the next run finds the login."""
    with serving_in_thread() as chatgpt:
        home = chatgpt.home(tmp_path)
        chatgpt.logins.expire_access()
        gate = chatgpt.token_gate = Gate()
        with running(chatgpt, home) as stopped:
            chatgpt.wait_for(lambda: gate.held, timeout=30)
            for number in numbers:
                send(stopped, number)
            gate.open()
            lines, told = stopped.communicate(timeout=30)
        assert stopped.returncode == 128 + numbers[0]
        assert json.loads(lines.splitlines()[-1])["code"] == "interrupted"
        assert told == "error: The run was interrupted.\n"
        assert {on_disk(home)} == chatgpt.logins.access
        assert [request.status for request in chatgpt.requests] == [401]
        with running(chatgpt, home) as next_one:
            _, told = next_one.communicate(timeout=30)
        assert (next_one.returncode, told) == (0, "")
        assert [request.status for request in chatgpt.requests] == [401, 200]
        assert len(chatgpt.token_requests) == 1
        assert chatgpt.faults == []
