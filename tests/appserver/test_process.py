"""The child as a process: what it inherits, what it is tied to, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import trio
from harness import running_bridge, scripted_codex, turns
from server.prompted import MODEL, EventLog, ask, is_alive, wait_for

from bridge.appserver.process import Process, child_environment, spawn, stop
from bridge.errors import NotReady


async def start(source: str, *arguments: str) -> Process:
    """A child that is a small Python program."""
    return await spawn([sys.executable, "-S", "-E", "-c", source, *arguments], env=dict(os.environ))


async def read_line(process: Process) -> str:
    """The next thing that the child says."""
    with trio.fail_after(10):
        line = b""
        while not line.endswith(b"\n"):
            line += await process.stdout.receive_some(4096)
    return line.decode().strip()


# Start


@pytest.mark.parametrize("name", ["missing", "directory", "not_executable", "not_a_program"])
async def test_a_program_that_cannot_be_started_is_named(tmp_path: Path, name: str) -> None:
    """NotReady, which is 503 for a client and a reason for the operator."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "not_executable").write_text("#!/bin/sh\n")
    (tmp_path / "not_a_program").write_bytes(b"\0\0\0")
    (tmp_path / "not_a_program").chmod(0o755)
    with pytest.raises(NotReady, match="CODEX_BIN") as refused:
        await spawn([str(tmp_path / name)], env={})
    assert refused.value.code == "backend_start_failed"


async def test_the_child_leads_a_session_of_its_own_and_keeps_files_private() -> None:
    """Its group can be ended as a whole, a Ctrl-C in our terminal is not its business, and its umask is 077."""
    process = await start("import os; print(os.getsid(0), os.getpgid(0), os.umask(0), flush=True); input()")
    assert await read_line(process) == f"{process.pid} {process.pid} {0o077}"
    await stop(process)


async def test_the_child_inherits_no_files() -> None:
    """Of our descriptors it has its three pipes and nothing else."""
    readable, writable = os.pipe()
    os.set_inheritable(writable, True)
    process = await start("import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:4], flush=True); input()")
    # The fourth is the listing itself.
    assert await read_line(process) == "[0, 1, 2, 3]"
    await stop(process)
    os.close(readable)
    os.close(writable)


async def test_the_child_is_started_by_the_main_thread() -> None:
    """The kernel ends it with the *thread* that started it; a worker thread would take it along after idling."""
    process = await start("input()")
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    if not children.exists():
        pytest.skip("this kernel does not list children by thread")
    assert str(process.pid) in children.read_text().split()
    await stop(process)


# End


async def test_a_polite_child_is_ended_politely() -> None:
    """SIGTERM comes first, and its exit code is its own."""
    process = await start(
        "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True); signal.pause()"
    )
    await read_line(process)
    with trio.fail_after(10):
        await stop(process)
    assert process.returncode == 5


async def test_a_stubborn_child_is_killed_after_the_grace() -> None:
    """It ignores SIGTERM and the end of its stdin; it is ended and reaped anyway."""
    process = await start("import signal; signal.signal(15, 1); print('up', flush=True)\nwhile 1: signal.pause()")
    await read_line(process)
    with trio.fail_after(10):
        await stop(process, grace=0.1)
    assert process.returncode == -signal.SIGKILL
    assert not Path(f"/proc/{process.pid}").exists()


@pytest.mark.parametrize("leader", ["exit", "wait"])
async def test_what_the_child_has_started_goes_with_it(leader: str) -> None:
    """Grandchildren that ignore SIGTERM are killed, also when the child itself has left long before."""
    source = (
        "import os, signal, sys\n"
        "signal.signal(15, 1)\n"
        "if pid := os.fork():\n"
        "    print(pid, flush=True)\n"
        "    sys.argv[1] == 'exit' and os._exit(0)\n"
        "while 1: signal.pause()\n"
    )
    process = await start(source, leader)
    grandchild = int(await read_line(process))
    if leader == "exit":
        assert await process.wait() == 0
    assert is_alive(grandchild)
    await stop(process, grace=0.1)
    wait_for(lambda: not is_alive(grandchild), "the grandchild is gone", 10)


async def test_stopping_twice_or_under_cancellation_still_ends_it() -> None:
    """An end that was begun is carried out."""
    process = await start("input()")
    with trio.CancelScope() as scope:
        scope.cancel()
        await stop(process)
    assert process.returncode is not None
    await stop(process)


def test_the_child_does_not_outlive_a_killed_bridge(tmp_path: Path) -> None:
    """SIGKILL of the bridge takes the child along, even one that ignores SIGTERM and the end of its stdin."""
    script = turns([{"text": "hi"}], ignore_sigterm=True, ignore_eof=True)
    log = EventLog(tmp_path / "events.ndjson")
    codex = str(scripted_codex(tmp_path, script))
    with running_bridge(tmp_path, f"--log-events={log.path}", CODEX_BIN=codex, PROXY_MODELS=MODEL) as bridge:
        assert bridge.post("/responses", ask()).status_code == 200
        pids = wait_for(
            lambda: [record["payload"]["pid"] for record in log.records() if record["kind"] == "backend_start"],
            "the start is in the log",
        )
        assert all(is_alive(pid) for pid in pids)
        bridge.process.kill()
        bridge.process.wait()
        wait_for(lambda: not any(is_alive(pid) for pid in pids), "the child is gone", 10)


# The environment


def test_the_environment_is_an_allow_list() -> None:
    """Nothing passes that is not named, or asked for by a provider."""
    source = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LANG": "C",
        "LC_ALL": "C",
        "HTTPS_PROXY": "http://proxy",
        "no_proxy": "localhost",
        "SSL_CERT_FILE": "/certs",
        "PROXY_API_KEY": "canary",
        "OPENAI_API_KEY": "canary",
        "ANTHROPIC_API_KEY": "canary",
        "AWS_SECRET_ACCESS_KEY": "canary",
        "LD_PRELOAD": "canary",
        "PYTHONPATH": "canary",
        "MY_PROVIDER_KEY": "mine",
    }
    kept = child_environment(source, also=["MY_PROVIDER_KEY", "NOT_SET"], extra={"CODEX_HOME": "/home/me/.codex"})
    assert "canary" not in kept.values()
    assert kept == {name: value for name, value in source.items() if value != "canary"} | {
        "CODEX_HOME": "/home/me/.codex"
    }
