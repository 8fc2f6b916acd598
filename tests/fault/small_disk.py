"""A command on a disk of its own that is soon full: a small tmpfs that this command alone sees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import KEY, ROOT, RunningBridge

_MOUNT = 'mount -t tmpfs -o size="$1",mode=700 none "$2"; shift 2; exec "$@"'
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", _MOUNT, "sh")


def on_a_small_disk(place: Path, size: str, *command: str) -> list[str]:
    """The command line of a command with a disk of `size` at `place`. Skips the test where that is impossible."""
    place.mkdir(exist_ok=True)
    wrapped = [*_NAMESPACE, size, str(place)]
    try:
        tried = subprocess.run([*wrapped, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare(1) here to mount a disk with")
    if tried.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {tried.stderr.strip()}")
    return [*wrapped, *command]


def environment(directory: Path, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "XDG_STATE_HOME": str(directory / "state"),
        "PROXY_CODEX_WORKDIR": str(directory / "work"),
        "PROXY_API_KEY": KEY,
        "PROXY_GRACE": "30",
        "PORT": "0",
        **more,
    }


class SmallDisk:
    """The disk as it is seen from outside, while the process that has it lives."""

    def __init__(self, process: subprocess.Popen[str], place: Path) -> None:
        self.path = Path(f"/proc/{process.pid}/root{place}")

    def fill(self) -> None:
        """Take all the room that is left."""
        with pytest.raises(OSError, match="No space left"), (self.path / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)

    def make_room(self) -> None:
        """Give it back."""
        (self.path / "filler").unlink()


@contextmanager
def bridge_on_a_small_disk(directory: Path, *arguments: str, **more: str) -> Iterator[tuple[RunningBridge, SmallDisk]]:
    """A bridge whose event log is on a disk of 256 KiB, and that disk."""
    place = directory / "disk"
    command = (sys.executable, "-P", "-m", "bridge", "serve", f"--log-events={place}/events.ndjson", *arguments)
    stderr = directory / "bridge-stderr.txt"
    with (
        stderr.open("w") as errors,
        subprocess.Popen(
            on_a_small_disk(place, "256k", *command),
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(directory, **more),
            cwd=ROOT,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("listening on "), line + stderr.read_text()
            yield RunningBridge(line.split()[-1], process, directory / "state", stderr), SmallDisk(process, place)
        finally:
            process.kill()
