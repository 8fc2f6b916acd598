"""Prepare a release: see scripts/release."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TESTED = ROOT / ".cache/tested"
"""The tree that scripts/test has passed, written by it."""
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
UNRELEASED = "## [Unreleased]\n"
REHEARSAL = "--without-packages"


class Refused(Exception):
    """Why there is no release, and what to do."""


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(f"`git {' '.join(words)}` failed: {done.stderr.strip()}")
    return done.stdout.strip()


def check(version: str) -> None:
    """Everything that can be known before something is changed."""
    if VERSION.fullmatch(version) is None:
        raise Refused(f"{version!r} is not a version. Use MAJOR.MINOR.PATCH, with a1, b1 or rc1 for a pre-release.")
    if sort_key(version) <= sort_key(current_version()):
        raise Refused(f"{version} is not newer than {current_version()}. Choose a higher version.")
    if git("tag", "--list", f"v{version}"):
        raise Refused(f"The tag v{version} exists. Choose another version.")
    if changed := git("status", "--porcelain"):
        raise Refused(f"The tree has changes that are not committed. Commit or stash them:\n{changed}")
    tree = git("rev-parse", "HEAD^{tree}")
    if not TESTED.exists() or TESTED.read_text().strip() != tree:
        raise Refused("scripts/test has not passed on this commit. Run it without arguments, then try again.")
    if not unreleased():
        raise Refused("CHANGELOG.md has nothing under [Unreleased]. Say there what changes for users.")


def sort_key(version: str) -> tuple[int, int, int, str]:
    """A pre-release comes before its release."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(\w*)", version)
    assert found is not None
    return int(found[1]), int(found[2]), int(found[3]), found[4] or "~"


def current_version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "bridge/__init__.py").read_text(), re.M)
    assert found is not None
    return found[1]


def unreleased() -> str:
    """The text of the changelog that has not been released."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition(UNRELEASED)[2]
    return re.split(r"^## ", text, maxsplit=1, flags=re.M)[0].strip()


def prepare(version: str, day: datetime.date) -> None:
    """Set the version, date the changelog, and write what follows from both."""
    package = ROOT / "bridge/__init__.py"
    package.write_text(package.read_text().replace(f'"{current_version()}"', f'"{version}"'))
    changelog = ROOT / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    changelog.write_text(text.replace(UNRELEASED, f"{UNRELEASED}\n## [{version}] - {day}\n", 1), encoding="utf-8")
    subprocess.run([sys.executable, ROOT / "scripts/reference"], check=True, stdout=subprocess.DEVNULL)


def release(version: str, *, packages: bool) -> None:
    check(version)
    head = git("rev-parse", "HEAD")
    try:
        prepare(version, datetime.datetime.now(tz=datetime.UTC).date())
        git("commit", "--all", "--message", f"release: {version}")
        if packages:
            # After the commit: the time of the files in the packages is that of the commit.
            subprocess.run([sys.executable, ROOT / "scripts/packaging/run.py"], check=True)
        git("tag", "--annotate", f"v{version}", "--message", f"turnbridge {version}")
    except BaseException:
        # The tree was clean: this removes only what was written here.
        git("reset", "--hard", head)
        raise
    if packages:
        print(f"turnbridge {version} is in dist/ and tagged. Publish it with: git push origin HEAD v{version}")
    else:
        print(
            f"turnbridge {version} is tagged. This was a rehearsal: git tag -d v{version}; git reset --hard {head[:12]}"
        )


def main() -> int:
    words = [word for word in sys.argv[1:] if word != REHEARSAL]
    if len(words) != 1 or words[0].startswith("-"):
        print(f"usage: scripts/release VERSION [{REHEARSAL}]", file=sys.stderr)
        return 2
    try:
        release(words[0], packages=REHEARSAL not in sys.argv)
    except (Refused, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
