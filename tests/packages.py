"""Installs programs that tests need from Debian's packages, where the tests may do so."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class NotInstalled(Exception):
    """A program is missing, and it cannot be installed."""


def install(*packages: str) -> None:
    """Install packages if this is a Debian machine and the tests run as root. Raises NotInstalled."""
    names = " ".join(packages)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NotInstalled(f"These tests need {names}. Install it, for example with `apt-get install {names}`.")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
    # Several processes of the tests may need them at once. `apt-get update` does not wait for another's lock.
    with open(Path(tempfile.gettempdir()) / "turnbridge-tests-packages.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in ([*apt, "update"], [*apt, "--no-install-recommends", "install", *packages]):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
            if done.returncode != 0:
                raise NotInstalled(f"{names} cannot be installed: {' '.join(command)}: {done.stderr.strip()[-400:]}")
