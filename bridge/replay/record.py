"""`turnbridge record`: a bridge and a command in the foreground. They start and end together, and leave a whole log."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from bridge.app.app import App
from bridge.appserver.process import die_with_parent, wait_for_exit
from bridge.errors import BridgeError, LogFailed
from bridge.http.sockets import open_sockets
from bridge.log.event_log import EventLog
from bridge.routing.setup import check_codex, prepare_workdir
from bridge.server.process import Stop
from bridge.server.run import Server
from bridge.settings import Settings
from bridge.settings.file import FileConfig
from bridge.terminal import say

FAILED, NOT_RUNNABLE, NOT_FOUND, BY_SIGNAL = 1, 126, 127, 128
"""Exit codes, as a shell gives them; a signal's number is added to the last."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
_PR_SET_CHILD_SUBREAPER = 36

Signals = AsyncIterator[int]


async def record_command(settings: Settings, config: FileConfig, argv: list[str]) -> int:
    """Run the command with a bridge, and report on stderr what was recorded; the exit code."""
    if not settings.mock_only:
        check_codex(settings)
        prepare_workdir(settings.workdir)
    settings = settings.model_copy(update={"drain_delay": 0})
    key = f"cb-{secrets.token_urlsafe(32)}"
    sockets = open_sockets(settings.host, settings.port)
    url = f"http://{settings.host}:{sockets[0].getsockname()[1]}/v1"
    environment = os.environ | {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key}
    app, stop = App(settings, config, keys=(key,)), Stop()
    assert app.log is not None
    with trio.open_signal_receiver(*FORWARDED, signal.SIGCHLD) as signals:
        async with trio.open_nursery() as nursery:
            over = trio.Event()
            await nursery.start(_serve, Server(app), sockets, stop, over)
            code = await _run_command(argv, environment, signals, stop)
            stop.asked.set()
            async with trio.open_nursery() as ending:
                ending.start_soon(_hurry, signals, stop)
                await over.wait()
                ending.cancel_scope.cancel()
    return FAILED if _report(app.log) else code


async def _serve(
    server: Server, sockets: list[socket.socket], stop: Stop, over: trio.Event, task_status: trio.TaskStatus[None]
) -> None:
    await server.run(sockets, stop, task_status)
    over.set()


async def _run_command(argv: list[str], environment: Mapping[str, str], signals: Signals, stop: Stop) -> int:
    """Run until the command ends or the bridge must stop. Nothing of the command is left then, whatever happens."""
    if stop.asked.is_set():
        return FAILED
    try:
        command = Command(argv, environment)
    except CannotRun as error:
        say("error", error.message)
        return error.exit_code
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_forward, signals, command)
            nursery.start_soon(_cancel_when, stop.asked, nursery.cancel_scope)
            await command.wait()
            nursery.cancel_scope.cancel()
    finally:
        code = await command.finish()
    return code


async def _forward(signals: Signals, command: Command) -> None:
    async for number in signals:
        if number == signal.SIGCHLD:
            command.follow_stop()
        else:
            command.send(number)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def _hurry(signals: Signals, stop: Stop) -> None:
    """A signal ends a bridge that is already stopping at once."""
    async for number in signals:
        if number != signal.SIGCHLD:
            stop.at_once()


def _report(log: EventLog) -> bool:
    """Describe the log in one line, after a line with its failure; whether it has failed."""
    failed = False
    try:
        log.check()
    except LogFailed as error:
        say("error", error.message)
        failed = True
    turns = log.recorder.turns
    counted = f"{turns} turn{'' if turns == 1 else 's'}"
    if log.writer.deleted:
        left = f"what is left of the log is {log.writer.shown}" if log.writer.exists else "nothing is left of the log"
        say("turnbridge", f"{counted}, not all of them recorded; {left}")
    else:
        say("turnbridge", f"{counted} recorded, {log.recorder.failed} failed; the log is {log.writer.shown}")
    return failed


# The command


class CannotRun(BridgeError):
    """The command cannot be started; `exit_code` is what a shell would give."""

    code = "command_failed"

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(f"{name} cannot be run: {error.strerror}.")
        self.exit_code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE


def check_program(name: str) -> None:
    """Raise CannotRun for a program that does not exist or is not executable, before anything is prepared for it."""
    if shutil.which(name) is None:
        if os.sep in name and Path(name).exists():
            raise CannotRun(name, PermissionError(errno.EACCES, "it is not executable"))
        raise CannotRun(name, FileNotFoundError(errno.ENOENT, "there is no such program"))


class Command:
    """A running command in a process group of its own. Raises CannotRun.

    If we have the terminal, the command gets it, as from a shell, so that Ctrl-C and Ctrl-Z reach it and it may read:
    at once if it also writes to the terminal, else (in `record … | less` another program needs it) when it tries to
    read. `wait` until it ends, then, and in any other case, `finish`.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        # Looked up before the fork: between fork and exec nothing may take a lock.
        prctl: Any = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None
        die_with_us = die_with_parent()
        if prctl is not None:
            # Orphans of the command become our children, so that we can wait for their end.
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._terminal = _terminal()
        if self._terminal is not None:
            # A background process that takes the terminal back would be stopped.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        given = self._terminal if os.isatty(0) and os.isatty(1) else None

        def prepare() -> None:
            if die_with_us is not None:
                die_with_us()
            if given is not None:
                with suppress(OSError):
                    os.tcsetpgrp(given, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)

        try:
            self._popen = subprocess.Popen(  # noqa: S603
                list(argv), env=dict(environment), process_group=0, preexec_fn=prepare
            )
        except OSError as error:
            raise CannotRun(argv[0], error) from None
        self._pid = self._popen.pid

    def send(self, number: int) -> None:
        """Signal the whole group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    async def wait(self) -> None:
        """Wait for the end of the command itself."""
        await wait_for_exit(self._pid)

    def follow_stop(self) -> None:
        """On SIGCHLD: a command that was stopped from its terminal (Ctrl-Z) stops us, until both are continued.

        A command that was stopped because it does not have the terminal gets it, if it is ours.
        """
        try:
            stopped = os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:  # it has ended
            return
        terminal = self._terminal
        if terminal is None or stopped is None:
            return
        group = os.getpgrp()
        if stopped.si_status not in (signal.SIGTTIN, signal.SIGTTOU) or os.tcgetpgrp(terminal) != group:
            if os.tcgetpgrp(terminal) == self._pid:
                os.tcsetpgrp(terminal, group)
            os.killpg(group, signal.SIGTSTP)
            # We continue here after `fg` or `bg`.
        if os.tcgetpgrp(terminal) == group:
            os.tcsetpgrp(terminal, self._pid)
        self.send(signal.SIGCONT)

    async def finish(self) -> int:
        """End what is left of it and reap it; its exit code, as a shell reports it."""
        with trio.CancelScope(shield=True):
            if self._popen.poll() is None:
                await self._end(self.wait)
                await self.wait()
            code = self._popen.wait()
            if self._group_lives():
                await self._end(self._group_ends)
                with trio.move_on_after(GRACE):
                    await self._group_ends()
        if self._terminal is not None:
            with suppress(OSError):
                if os.tcgetpgrp(self._terminal) == self._pid:
                    os.tcsetpgrp(self._terminal, os.getpgrp())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        return code if code >= 0 else BY_SIGNAL - code

    async def _end(self, ended: Callable[[], Any]) -> None:
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a stopped process receives no other signal
        with trio.move_on_after(GRACE):
            await ended()
        self.send(signal.SIGKILL)

    def _group_lives(self) -> bool:
        with suppress(ChildProcessError):
            while os.waitpid(-self._pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self._pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    async def _group_ends(self) -> None:
        while self._group_lives():  # noqa: ASYNC110  # the system reports the end of a process, not of a group
            await trio.sleep(0.02)


def _terminal() -> int | None:
    """The terminal if we are in its foreground; None without one, or if another process has it."""
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            if os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp():
                return descriptor
    return None
