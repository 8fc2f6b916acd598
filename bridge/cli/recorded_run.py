"""A bridge and a command that uses it: they begin and end together, and the log is whole when they have."""

from __future__ import annotations

import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Mapping

import trio

from bridge.backends.setup import check_codex, prepare_workdir
from bridge.cli.foreground import CannotRun, Command
from bridge.cli.streams import say
from bridge.config import Settings
from bridge.config_file import FileConfig
from bridge.http.sockets import open_sockets
from bridge.protolog.event_log import EventLog, LogFailed
from bridge.server.run import Bridge
from bridge.server.stopping import Stop

FAILED = 1
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

Signals = AsyncIterator[int]


async def record(settings: Settings, config: FileConfig, argv: list[str]) -> int:
    """Run the command with a bridge, and tell on stderr what has been recorded; the exit code."""
    if not settings.mock_only:
        check_codex(settings)
        prepare_workdir(settings.workdir)
    settings = settings.model_copy(update={"drain_delay": 0})
    key = f"cb-{secrets.token_urlsafe(32)}"
    sockets = open_sockets(settings.host, settings.port)
    url = f"http://{settings.host}:{sockets[0].getsockname()[1]}/v1"
    environment = os.environ | {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key}
    bridge, stop = Bridge(settings, (key,), config), Stop()
    assert bridge.log is not None
    with trio.open_signal_receiver(*PASSED_ON, signal.SIGCHLD) as signals:
        async with trio.open_nursery() as nursery:
            over = trio.Event()
            await nursery.start(_serve, bridge, sockets, stop, over)
            code = await _run_command(argv, environment, signals, stop)
            stop.asked.set()
            await _wait_or_hurry(over, signals, stop)
    return FAILED if _tell(bridge.log) else code


async def _serve(
    bridge: Bridge, sockets: list[socket.socket], stop: Stop, over: trio.Event, task_status: trio.TaskStatus[None]
) -> None:
    await bridge.run(sockets, stop, task_status)
    over.set()


async def _run_command(argv: list[str], environment: Mapping[str, str], signals: Signals, stop: Stop) -> int:
    """Until the command ends, or the bridge wants to stop. Nothing of it is left then, whatever happens."""
    if stop.asked.is_set():
        return FAILED
    try:
        command = Command(argv, environment)
    except CannotRun as error:
        say("error", error.message)
        return error.exit_code
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pass_on, signals, command)
            nursery.start_soon(_cancel_when, stop.asked, nursery.cancel_scope)
            await command.wait()
            nursery.cancel_scope.cancel()
    finally:
        code = await command.finish()
    return code


async def _pass_on(signals: Signals, command: Command) -> None:
    async for number in signals:
        if number == signal.SIGCHLD:
            command.follow_stop()
        else:
            command.send(number)


async def _wait_or_hurry(over: trio.Event, signals: Signals, stop: Stop) -> None:
    """Until the bridge has stopped; a signal hurries it."""

    async def hurry() -> None:
        async for number in signals:
            if number != signal.SIGCHLD:
                stop.at_once()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hurry)
        await over.wait()
        nursery.cancel_scope.cancel()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _tell(log: EventLog) -> bool:
    """One line about the log, after another when it has failed; whether it has."""
    try:
        log.check()
        failed = False
    except LogFailed as error:
        say("error", error.message)
        failed = True
    turns = log.recorder.turns
    counted = f"{turns} turn{'' if turns == 1 else 's'}"
    if log.writer.deleted:
        left = f"what is left of the log is {log.writer.shown}" if log.writer.exists else "nothing is left of the log"
        say("codex-bridge", f"{counted}, not all of them recorded; {left}")
    else:
        say("codex-bridge", f"{counted} recorded, {log.recorder.failed} failed; the log is {log.writer.shown}")
    return failed
