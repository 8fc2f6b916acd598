"""A command that is run for a person: it has the terminal, gets the signals, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from bridge.errors import BridgeError

NOT_FOUND, NOT_RUNNABLE = 127, 126
BY_SIGNAL = 128
GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
_LOOK = 0.02
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class CannotRun(BridgeError):
    """The command cannot be started; `exit_code` is what a shell would give."""

    code = "command_failed"

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(f"{name} cannot be run: {error.strerror}.")
        self.exit_code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE


def check_program(name: str) -> None:
    """Raise CannotRun for a program that is not there, or is none, before anything is made ready for it."""
    if shutil.which(name) is None:
        if os.sep in name and Path(name).exists():
            raise CannotRun(name, PermissionError(errno.EACCES, "it is not executable"))
        raise CannotRun(name, FileNotFoundError(errno.ENOENT, "there is no such program"))


class Command:
    """A running command, in a process group of its own. Raises CannotRun.

    When we have the terminal it gets it, as a shell would do it, so that Ctrl-C and Ctrl-Z are for it and it may read:
    at once when it also writes to the terminal, else (in `record … | less` another needs it) when it wants to read.
    `wait` until it ends, then, and in any other case, `finish`.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._terminal = _terminal()
        self._prctl = _prctl()
        if self._prctl is not None:
            # What it leaves behind becomes ours, so that its end can be waited for.
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if self._terminal is not None:
            # Who is not in the foreground would be stopped for taking the terminal back.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            self._popen = subprocess.Popen(  # noqa: S603
                list(argv), env=dict(environment), process_group=0, preexec_fn=self._prepare(os.getpid())
            )
        except OSError as error:
            raise CannotRun(argv[0], error) from None
        self._pid = self._popen.pid

    def _prepare(self, parent: int) -> Callable[[], None]:
        """What the child does before it becomes the command."""
        terminal, prctl = self._terminal if os.isatty(0) and os.isatty(1) else None, self._prctl

        def prepare() -> None:
            if prctl is not None:
                prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)
            if terminal is not None:
                with suppress(OSError):
                    os.tcsetpgrp(terminal, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)

        return prepare

    def send(self, number: int) -> None:
        """Signal the whole group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    async def wait(self) -> None:
        """Until the command itself has ended."""
        try:
            descriptor = os.pidfd_open(self._pid)
        except (AttributeError, OSError):  # not Linux, or an old one
            ended = os.WEXITED | os.WNOWAIT
            await trio.to_thread.run_sync(os.waitid, os.P_PID, self._pid, ended, abandon_on_cancel=True)
            return
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)

    def follow_stop(self) -> None:
        """On SIGCHLD: a command that was stopped from its terminal (Ctrl-Z) stops us, too, until we go on together.

        One that was stopped because it does not have the terminal is given it, when we do.
        """
        terminal, why = self._terminal, self._stopped_by()
        if terminal is None or why is None:
            return
        group = os.getpgrp()
        if why not in (signal.SIGTTIN, signal.SIGTTOU) or os.tcgetpgrp(terminal) != group:
            if os.tcgetpgrp(terminal) == self._pid:
                os.tcsetpgrp(terminal, group)
            os.killpg(group, signal.SIGTSTP)
            # Here somebody has typed `fg` or `bg`.
        if os.tcgetpgrp(terminal) == group:
            os.tcsetpgrp(terminal, self._pid)
        self.send(signal.SIGCONT)

    def _stopped_by(self) -> int | None:
        try:
            stopped = os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:  # it has ended
            return None
        return None if stopped is None else stopped.si_status

    async def finish(self) -> int:
        """End what is left of it and reap it; its exit code, as a shell tells it."""
        with trio.CancelScope(shield=True):
            if self._popen.poll() is None:
                self._terminate()
                with trio.move_on_after(GRACE):
                    await self.wait()
                self.send(signal.SIGKILL)
                await self.wait()
            code = self._popen.wait()
            if self._group_lives():
                self._terminate()
                with trio.move_on_after(GRACE):
                    await self._group_ends()
                self.send(signal.SIGKILL)
                with trio.move_on_after(GRACE):
                    await self._group_ends()
        if self._terminal is not None:
            with suppress(OSError):
                if os.tcgetpgrp(self._terminal) == self._pid:
                    os.tcsetpgrp(self._terminal, os.getpgrp())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        return code if code >= 0 else BY_SIGNAL - code

    def _terminate(self) -> None:
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # who is stopped hears nothing

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
        while self._group_lives():  # noqa: ASYNC110  # nobody tells when a group ends
            await trio.sleep(_LOOK)


def _terminal() -> int | None:
    """The terminal whose foreground we have; None when we have none, or another has it."""
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            if os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp():
                return descriptor
    return None


def _prctl() -> Callable[[int, int], Any] | None:
    """Linux's. Looked up before the fork: between fork and exec nothing may take a lock."""
    return ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None
