"""auth.json is written whole or not at all, and to nobody else."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from auth.mounts import MOUNTED_FILE, MOUNTED_FILE_IN_A_READ_ONLY_DIRECTORY, within_mounts

from bridge.store.private_files import write_json
from bridge.upstream.codex import FILE


def test_a_written_file_is_private_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    path.write_text("old")
    path.chmod(0o644)
    old_umask = os.umask(0)
    try:
        write_json(path, {"a": 1})
    finally:
        os.umask(old_umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert FILE.read(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "real").mkdir()
    link, real = tmp_path / "home" / "auth.json", tmp_path / "real" / "login.json"
    real.write_text("{}")
    link.symlink_to("../real/login.json")
    write_json(link, {"a": 1})
    assert os.readlink(link) == "../real/login.json"
    assert FILE.read(link) == FILE.read(real) == {"a": 1}
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["auth.json", "login.json"]


def test_a_link_in_the_place_of_the_new_file_is_not_followed(tmp_path: Path) -> None:
    """Somebody who can write into CODEX_HOME gets no token copied to a place of theirs."""
    bait, path = tmp_path / "bait", tmp_path / "auth.json"
    bait.write_text("bait")
    (tmp_path / ".auth.json.new").symlink_to(bait)
    with suppress(OSError):
        write_json(path, {"a": 1})
    assert bait.read_text() == "bait"
    write_json(path, {"a": 2})
    assert FILE.read(path) == {"a": 2}
    assert not path.is_symlink()
    assert bait.read_text() == "bait"


def test_a_pipe_in_the_place_of_the_new_file_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    os.mkfifo(tmp_path / ".auth.json.new")
    subprocess.run([sys.executable, "-c", WRITE, path], timeout=30, check=True)
    assert FILE.read(path) == {"new": True}
    assert list(tmp_path.iterdir()) == [path]


def test_a_program_that_has_opened_the_new_file_before_reads_nothing_in_it(tmp_path: Path) -> None:
    """It may have been readable for others; it is not used again, but made anew."""
    path, left_behind = tmp_path / "auth.json", tmp_path / ".auth.json.new"
    left_behind.touch(0o644)
    with left_behind.open() as file:
        write_json(path, {"a": 1})
        assert file.read() == ""
    assert FILE.read(path) == {"a": 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give a file away")
def test_a_file_stays_its_owners_when_the_superuser_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    path.write_text("{}")
    os.chown(path, 1234, 2345)
    write_json(path, {"a": 1})
    assert FILE.read(path) == {"a": 1}
    assert (path.stat().st_uid, path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (1234, 2345, 0o600)


WRITE = """
import sys
from pathlib import Path
from bridge.store.private_files import write_json
write_json(Path(sys.argv[1]), {"new": True})
"""

each_mount = pytest.mark.parametrize(
    "mounts", [MOUNTED_FILE, MOUNTED_FILE_IN_A_READ_ONLY_DIRECTORY], ids=["file", "directory"]
)


@each_mount
def test_a_file_that_cannot_be_replaced_is_written_in_place(tmp_path: Path, mounts: str) -> None:
    """As in a container that is given auth.json alone; what was longer before leaves nothing behind."""
    path = tmp_path / "auth.json"
    write_json(path, {"old": "x" * 1000})
    before = path.stat()
    within_mounts(mounts, path, sys.executable, "-c", WRITE, path)
    assert FILE.read(path) == {"new": True}
    assert (path.stat().st_ino, path.stat().st_mode) == (before.st_ino, before.st_mode)
    assert list(tmp_path.iterdir()) == [path]


@each_mount
def test_a_file_that_is_written_in_place_becomes_private(tmp_path: Path, mounts: str) -> None:
    path = tmp_path / "auth.json"
    path.write_text("{}")
    path.chmod(0o644)
    within_mounts(mounts, path, sys.executable, "-c", WRITE, path)
    assert FILE.read(path) == {"new": True}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


FULL_DISK = """
import resource, sys
from pathlib import Path
from bridge.store.private_files import write_json
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    write_json(Path(sys.argv[1]), {"canary": "x" * 100_000})
except OSError as error:
    print(error.strerror)
"""


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    write_json(path, {"old": True})
    told = subprocess.run([sys.executable, "-c", FULL_DISK, path], capture_output=True, text=True, check=True)
    assert told.stdout == "File too large\n"
    assert FILE.read(path) == {"old": True}
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file_that_cannot_be_replaced(tmp_path: Path) -> None:
    """What there is no room for is not begun to be written over it."""
    path = tmp_path / "auth.json"
    write_json(path, {"old": True})
    before = path.read_bytes()
    mounts = MOUNTED_FILE_IN_A_READ_ONLY_DIRECTORY
    assert within_mounts(mounts, path, sys.executable, "-c", FULL_DISK, path) == "no space left\n"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


CRASH_IN_PLACE = """
import os, sys
from pathlib import Path
from bridge.store.private_files import write_json

def crash(descriptor, size):
    print("crashed", flush=True)
    os._exit(0)

os.ftruncate = crash
write_json(Path(sys.argv[1]), {"new": True})
"""


@each_mount
def test_a_crash_before_the_rest_of_a_longer_file_is_cut_off_leaves_json(tmp_path: Path, mounts: str) -> None:
    path = tmp_path / "auth.json"
    write_json(path, {"old": "x" * 1000})
    assert within_mounts(mounts, path, sys.executable, "-c", CRASH_IN_PLACE, path) == "crashed\n"
    assert FILE.read(path) == {"new": True}
    write_json(path, {"next": True})
    assert FILE.read(path) == {"next": True}


CRASH = """
import os, signal, sys
from pathlib import Path
from bridge.store import private_files as files

def die(*_):
    if sys.argv[2] == "exit":
        os._exit(9)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(*{"before fsync": (os, "fsync"), "before rename": (Path, "replace")}[sys.argv[3]], die)
files.write_json(Path(sys.argv[1]), {"new": "x" * 100_000})
"""


@pytest.mark.parametrize("when", ["before fsync", "before rename"])
@pytest.mark.parametrize(("how", "status"), [("exit", 9), ("kill", -signal.SIGKILL)])
def test_a_crash_leaves_a_whole_file(tmp_path: Path, when: str, how: str, status: int) -> None:
    path = tmp_path / "auth.json"
    write_json(path, {"old": True})
    crashed = subprocess.run([sys.executable, "-c", CRASH, path, how, when], check=False)
    assert crashed.returncode == status
    assert FILE.read(path) == {"old": True}
    for left in tmp_path.iterdir():
        assert stat.S_IMODE(left.stat().st_mode) == 0o600
    write_json(path, {"next": True})
    assert FILE.read(path) == {"next": True}
    assert list(tmp_path.iterdir()) == [path]


WRITE_FOREVER = """
import itertools, sys
from pathlib import Path
from bridge.store.private_files import write_json
for number in itertools.count():
    write_json(Path(sys.argv[1]), {"number": number, "fill": "x" * (number * 7919 % 200_000)})
    if number == 20:
        print("begun", flush=True)
"""


def test_a_process_that_is_killed_anywhere_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITE_FOREVER, path], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            for _ in range(50):  # every reader sees a whole file, too
                assert FILE.read(path).keys() == {"number", "fill"}
            process.kill()
        number = FILE.read(path)["number"]
        assert len(FILE.read(path)["fill"]) == number * 7919 % 200_000
