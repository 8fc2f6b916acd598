"""Build the packages from two checkouts and compare them byte for byte."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


class Failed(Exception):
    """A check did not pass; the message says which, and why."""


def say(text: str) -> None:
    print(f"-- {text}", file=sys.stderr, flush=True)


def run(command: Sequence[str | Path], **options: object) -> str:
    """The standard output of a command, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise Failed(f"`{words}` ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return str(done.stdout)


def tracked() -> list[str]:
    """The files of the checkout that belong to the project: those that git has, or would add."""
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    return sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file())


def commit_time() -> str:
    """The time in the packages: that of the commit, so that everyone who builds it gets the same bytes."""
    return os.environ.get("SOURCE_DATE_EPOCH") or run(["git", "log", "-1", "--format=%ct"], cwd=ROOT).strip()


def build_twice(scratch: Path, out: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, built from two copies in different directories at different times of their files.

    The wheel of the first is built from the copy, that of the second from its sdist: so the sdist is complete.
    """
    say("building the packages twice")
    found: list[dict[str, Path]] = []
    names, source = tracked(), ROOT
    for number, options in enumerate((["--sdist", "--wheel"], [])):
        copy = scratch / f"copy {number}"
        for name in names:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, copy / name)
            shutil.copymode(source / name, copy / name)
        source = copy  # the checkout may change meanwhile
        target = scratch / f"packages {number}"
        environment = os.environ | {"SOURCE_DATE_EPOCH": commit_time()}
        run([sys.executable, "-m", "build", *options, "--outdir", target, copy], env=environment)
        found.append({path.name: path for path in target.iterdir()})
    first, second = found
    if sorted(first) != sorted(second):
        raise Failed(f"the two builds gave different files: {sorted(first)} and {sorted(second)}")
    for name in first:
        if digest(first[name]) != digest(second[name]):
            raise Failed(f"{name} differs between two builds: {different_members(first[name], second[name])}")
        say(f"{name}: the same bytes twice, sha256 {digest(first[name])[:16]}…")
    out.mkdir(parents=True, exist_ok=True)
    copies = [Path(shutil.copy(path, out)) for path in first.values()]
    (wheel,) = (path for path in copies if path.suffix == ".whl")
    (sdist,) = (path for path in copies if path.suffix == ".gz")
    return wheel, sdist


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def different_members(first: Path, second: Path) -> list[str]:
    """The names of the members that differ, or nothing if only the archives themselves do."""
    one, other = members(first), members(second)
    return sorted(name for name in one | other if one.get(name) != other.get(name))


def members(archive: Path) -> dict[str, str]:
    """The digest of each file in a wheel or sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: hashlib.sha256(wheel.read(name)).hexdigest() for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        files = [member for member in sdist.getmembers() if member.isfile()]
        contents = {member.name: sdist.extractfile(member) for member in files}
        return {name: hashlib.sha256(file.read()).hexdigest() for name, file in contents.items() if file is not None}


def check_contents(wheel: Path, sdist: Path) -> None:
    """Every file of the package, the manual page, the completion and the licence are in the wheel, and no cache."""
    name, version = wheel.name.split("-")[:2]
    in_wheel, in_sdist = members(wheel), members(sdist)
    data = f"{name}-{version}.data/data/"
    wanted = [path for path in tracked() if path.startswith("bridge/")]
    wanted += [data + path for path in tracked() if path.startswith("share/")]
    wanted += [f"{name}-{version}.dist-info/licenses/LICENSE"]
    if missing := [path for path in wanted if path not in in_wheel]:
        raise Failed(f"the wheel lacks {missing}")
    if missing := [path for path in tracked() if f"{name}-{version}/{path}" not in in_sdist]:
        raise Failed(f"the sdist lacks {missing[:10]}")
    extra = [path for path in in_wheel if path not in wanted and ".dist-info/" not in path]
    if extra:
        raise Failed(f"the wheel has files that the checkout has not: {extra[:10]}")
    say(f"the wheel has all {len(wanted)} files, the sdist all {len(tracked())}")
