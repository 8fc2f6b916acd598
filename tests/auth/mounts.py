"""Files that cannot be replaced, as in a container: mounts that one command alone sees, made without being root."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

MOUNTED_FILE = 'mount --bind "$1" "$1"'
"""A file that is a mount of its own: to rename another to it is EBUSY."""
MOUNTED_FILE_IN_A_READ_ONLY_DIRECTORY = """
directory=$(dirname "$1")
mount --bind "$directory" "$directory"
mount --bind "$1" "$1"
mount -o remount,bind,ro "$directory"
"""
"""Nothing can be put beside it, either: EROFS."""

_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec")


def within_mounts(mounts: str, path: Path, *command: str | Path, said: str = "") -> str:
    """Run a command where `path` is mounted like this, and give its output. Skips the test where that is impossible."""
    try:
        tried = subprocess.run([*_NAMESPACE, mounts, "sh", path], check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare(1) here to mount a file with")
    if tried.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {tried.stderr.strip()}")
    script = f'{mounts}\nshift\nexec "$@"'
    run = subprocess.run(
        [*_NAMESPACE, script, "sh", path, *command], check=False, capture_output=True, text=True, input=said, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
