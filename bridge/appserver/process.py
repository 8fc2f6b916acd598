"""The child as an operating-system process: its environment, its start, its end."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio

from bridge.errors import NotReady

STDERR_KEPT = 64 * 1024
PIPE_SIZE = 1024 * 1024
"""Room in the child's stdout pipe. The default of 64 KiB means a wake-up per 200 deltas."""

_ALLOWED = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "TERM",
    "CODEX_HOME", "CODEX_SQLITE_HOME", "CODEX_CA_CERTIFICATE", "RUST_LOG", "LOG_FORMAT",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
}  # fmt: skip


def child_environment(
    source: Mapping[str, str], *, also: Iterable[str] = (), extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment that a child gets: an allow-list, so that no key of ours or of another program leaks into it.

    `also` names further variables (a provider in config.toml may read its key from one); `extra` sets some.
    """
    allowed = _ALLOWED | set(also)
    kept = {name: value for name, value in source.items() if name in allowed or name.startswith("LC_")}
    return kept | dict(extra or {})


class Process:
    """A running child and its three pipes."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        self._popen = popen
        self._reaping = trio.Lock()
        # The streams own duplicates, so that each side can be closed by itself.
        self.stdin = trio.lowlevel.FdStream(os.dup(popen.stdin.fileno()))
        self.stdout = trio.lowlevel.FdStream(os.dup(popen.stdout.fileno()))
        self.stderr = trio.lowlevel.FdStream(os.dup(popen.stderr.fileno()))
        for pipe in (popen.stdin, popen.stdout, popen.stderr):
            pipe.close()

    @property
    def pid(self) -> int:
        """The process id, also that of its group and session."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._popen.poll()

    def write_at_once(self, data: bytes) -> int:
        """Write as much to its stdin as it has room for; returns how much.

        A task of its own would write only after all other tasks have had their turn. A write to a child that has exited
        counts as complete: the reader notices its end.
        """
        try:
            return os.write(self.stdin.fileno(), data)  # trio has made it non-blocking
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    async def wait(self) -> int:
        """Wait for its end and reap it."""
        async with self._reaping:
            while (code := self._popen.poll()) is None:
                await wait_for_exit(self.pid)
        return code


async def wait_for_exit(pid: int) -> None:
    """Wait for the end of a child without reaping it."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old one
        await trio.to_thread.run_sync(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT, abandon_on_cancel=True)
        return
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


async def spawn(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None = None) -> Process:
    """Start a child in a session of its own, with three pipes. Raises NotReady when it cannot be started.

    Not trio's own way of starting processes: that forks in a worker thread, and the death signal (below) is tied to
    the thread that forks. The child would be killed when that thread has idled for ten seconds.
    """
    await trio.lowlevel.checkpoint()
    try:
        popen = subprocess.Popen(  # noqa: ASYNC220, S603
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            bufsize=0,
            start_new_session=True,
            umask=0o077,
            preexec_fn=die_with_parent(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        # A client may read it: where the program lies is not its business.
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NotReady(
            f"The Codex app-server could not be started ({os.path.basename(argv[0])}: {why}). "
            "Check CODEX_BIN, or run `turnbridge doctor`.",
            code="backend_start_failed",
        ) from error
    try:
        process = Process(popen)
    except OSError as error:
        popen.kill()
        popen.wait()
        raise NotReady(
            f"The Codex app-server could not be started: {error.strerror}.", code="backend_start_failed"
        ) from error
    with suppress(OSError, AttributeError):
        fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, PIPE_SIZE)  # type: ignore[attr-defined, unused-ignore]
    return process


class StderrTail:
    """The end of what a child writes to its stderr, for the log and `doctor`."""

    def __init__(self) -> None:
        self._tail = bytearray()

    async def read(self, stderr: trio.abc.ReceiveStream, drained: trio.Event) -> None:
        """Read to the end, or a chatty child would block."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in stderr:
                self._tail += data
                del self._tail[:-STDERR_KEPT]
        drained.set()

    def text(self) -> str:
        return self._tail.decode("utf-8", "replace")


async def stop(process: Process, *, grace: float = 2.0) -> None:
    """End a child and everything it started: stdin closed and SIGTERM, after `grace` seconds SIGKILL; always reaped."""
    with trio.CancelScope(shield=True):
        await process.stdin.aclose()
        signal_group(process, signal.SIGTERM)
        with trio.move_on_after(grace):
            await process.wait()
        # The group may outlive its leader.
        signal_group(process, signal.SIGKILL)
        await process.wait()
        await process.stdout.aclose()
        await process.stderr.aclose()


def signal_group(process: Process, number: signal.Signals) -> None:
    """Signal the child's whole process group (it is its own session's leader)."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def die_with_parent() -> Callable[[], None] | None:
    """On Linux: run in the child before exec, so that the kernel kills it when we are killed.

    A Codex leaves by itself when its stdin closes; this is for programs that do not look.
    """
    if sys.platform != "linux":
        return None
    # Looked up here, before the fork: between fork and exec nothing may take a lock.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return partial(_set_death_signal, prctl, os.getpid())


def _set_death_signal(prctl: Callable[[int, int], int], parent: int) -> None:
    prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
