"""deploy/state: the state directory of a running bridge is backed up, and another bridge continues from the copy."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from harness import ROOT, running_bridge


def state(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "deploy/state", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_bridge_continues_from_a_backup_of_a_running_one(tmp_path: Path) -> None:
    """With its stored responses, its generated key and the keys of clients; nobody else can read them."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    archive = tmp_path / "backup.tar.gz"
    with running_bridge(tmp_path / "one", "--mock-only") as bridge:
        first = bridge.post("/responses", {"model": "mock-text", "input": "hello"}).json()
        saved = state("backup", bridge.state / "turnbridge", archive)
        assert (saved.returncode, saved.stderr) == (0, "")
        assert bridge.post("/responses", {"model": "mock-text", "input": "after"}).status_code == 200
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600

    restored = tmp_path / "two/state/turnbridge"
    done = state("restore", archive, restored)
    assert (done.returncode, done.stderr) == (0, "")
    assert stat.S_IMODE(restored.stat().st_mode) == 0o700
    assert [path.name for path in restored.rglob("*-wal")] == []
    with running_bridge(tmp_path / "two", "--mock-only") as bridge, bridge.client() as client:
        assert client.get(f"/responses/{first['id']}").json()["output"] == first["output"]


def test_files_links_and_modes_are_kept(tmp_path: Path) -> None:
    original = tmp_path / "original"
    (original / "codex-home").mkdir(parents=True)
    (original / "api-key").write_text("secret")
    (original / "api-key").chmod(0o600)
    (original / "codex-home/auth.json").symlink_to("/home/you/.codex/auth.json")
    assert state("backup", original, tmp_path / "a.tar.gz").returncode == 0
    assert state("restore", tmp_path / "a.tar.gz", tmp_path / "copy").returncode == 0
    assert (tmp_path / "copy/api-key").read_text() == "secret"
    assert stat.S_IMODE((tmp_path / "copy/api-key").stat().st_mode) == 0o600
    assert os.readlink(tmp_path / "copy/codex-home/auth.json") == "/home/you/.codex/auth.json"


def test_a_restore_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/api-key").write_text("in use")
    assert state("backup", tmp_path / "state", tmp_path / "a.tar.gz").returncode == 0
    done = state("restore", tmp_path / "a.tar.gz", tmp_path / "state")
    assert done.returncode == 1
    assert "is not empty. Stop the bridge and move that directory away first." in done.stderr


def test_a_failed_backup_leaves_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/bridge.sqlite3").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    (tmp_path / "a.tar.gz").write_text("the last one")
    done = state("backup", tmp_path / "state", tmp_path / "a.tar.gz")
    assert (done.returncode, done.stderr.startswith("error: ")) == (1, True)
    assert (tmp_path / "a.tar.gz").read_text() == "the last one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "state"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["backup", "{dir}/none", "{dir}/a"], "Name the state directory of the bridge."),
        (["backup", "{dir}", "{dir}/inside"], "Put the archive elsewhere."),
        (["restore", "{dir}/none", "{dir}/b"], "No such file"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = state(*(word.replace("{dir}", str(tmp_path)) for word in arguments))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert said in done.stderr


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "link/outside"])
def test_an_archive_writes_nothing_outside(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        tar.addfile(link)
        member = tarfile.TarInfo(name)
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    done = state("restore", tmp_path / "a.tar.gz", tmp_path / "state")
    assert done.returncode == 1
    assert "outside the directory" in done.stderr
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "state").exists()


def test_it_needs_the_oldest_python_only(tmp_path: Path) -> None:
    """It runs where the bridge is not installed: with the system's Python alone."""
    system = shutil.which("python3", path="/usr/bin")
    if system is None:
        pytest.skip("/usr/bin/python3 is missing")
    (tmp_path / "state").mkdir()
    (tmp_path / "state/api-key").write_text("secret")
    for action, source, target in (("backup", "state", "a.tar.gz"), ("restore", "a.tar.gz", "copy")):
        command: list[str | Path] = [system, "-I", ROOT / "deploy/state", action, tmp_path / source, tmp_path / target]
        done = subprocess.run(command, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "copy/api-key").read_text() == "secret"
