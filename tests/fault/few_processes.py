"""`turnbridge` as a process that may start no other, and no thread: SIGUSR2 lifts that limit.

The superuser is exempt from the limit, unless it runs under another real user and without its privileges.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import KEY, ROOT, RunningBridge

_PROGRAM = """
import resource, signal

usual = resource.getrlimit(resource.RLIMIT_NPROC)
resource.setrlimit(resource.RLIMIT_NPROC, (0, usual[1]))
signal.signal(signal.SIGUSR2, lambda *_: resource.setrlimit(resource.RLIMIT_NPROC, usual))

from bridge.cli import main

main()
"""
_NOT_THE_SUPERUSER = ("setpriv", "--ruid=65534", "--bounding-set=-sys_resource,-sys_admin")


def _limited() -> list[str]:
    """The beginning of a command line for which the limit holds. Skips the test where that is impossible."""
    if os.getuid() != 0:
        return []
    if shutil.which("setpriv") is None or subprocess.run([*_NOT_THE_SUPERUSER, "true"], check=False).returncode:
        pytest.skip("the superuser cannot be made to keep to the limit here")
    return list(_NOT_THE_SUPERUSER)


@contextmanager
def bridge_with_few_processes(directory: Path, *arguments: str) -> Iterator[RunningBridge]:
    """A bridge with the mock models, for which neither a process nor a thread can be started."""
    stderr = directory / "bridge-stderr.txt"
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "XDG_STATE_HOME": str(directory / "state"),
        "PROXY_API_KEY": KEY,
        "PORT": "0",
    }
    command = [*_limited(), sys.executable, "-P", "-c", _PROGRAM, "serve", "--mock-only", *arguments]
    with (
        stderr.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=env, cwd=ROOT, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("listening on "), line + stderr.read_text()
            yield RunningBridge(line.split()[-1], process, directory / "state", stderr)
        finally:
            process.kill()
