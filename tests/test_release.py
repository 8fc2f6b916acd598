"""scripts/release on a repository of its own: what it refuses, commits and tags; a failure leaves nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT

ENTRY = "### Fixed\n\n- Something that users had noticed.\n"


class Repository:
    """A copy of what a release needs, committed."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "repository"
        self.path.mkdir()
        for name in ("bridge", "scripts", "share", "docs"):
            shutil.copytree(ROOT / name, self.path / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "CHANGELOG.md", "README.md", "LICENSE", ".gitignore"):
            shutil.copy(ROOT / name, self.path)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_{what}": "a@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "start")
        self.mark_tested()

    def git(self, *words: str) -> str:
        command = ["git", *words]
        return subprocess.run(
            command, cwd=self.path, env=self.environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    def mark_tested(self) -> None:
        """As scripts/test does when everything has passed."""
        (self.path / ".cache").mkdir(exist_ok=True)
        (self.path / ".cache/tested").write_text(self.git("rev-parse", "HEAD^{tree}"))

    def commit(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)
        self.git("commit", "--quiet", "--all", "--message", "change")

    def read(self, name: str) -> str:
        return (self.path / name).read_text(encoding="utf-8")

    def release(self, *words: str) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [
            sys.executable,
            self.path / "scripts/releasing/run.py",
            *words,
            "--without-packages",
        ]
        return subprocess.run(
            command, cwd=self.path, env=self.environment, capture_output=True, text=True, check=False, timeout=120
        )

    def refusal(self, *words: str) -> str:
        """What is said when there is no release, which changes nothing."""
        before = self.git("rev-parse", "HEAD"), self.git("status", "--porcelain")
        done = self.release(*words)
        assert done.returncode == 1, done
        assert "Traceback" not in done.stderr
        assert (self.git("rev-parse", "HEAD"), self.git("status", "--porcelain")) == before
        assert self.git("tag", "--list") == ""
        return done.stderr


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("release"))


@pytest.fixture
def repository(pristine: Repository, tmp_path: Path) -> Repository:
    found = object.__new__(Repository)
    found.path, found.environment = tmp_path / "repository", pristine.environment
    shutil.copytree(pristine.path, found.path)
    return found


def test_a_release_sets_the_version_dates_the_changelog_and_tags(repository: Repository) -> None:
    done = repository.release("7.1.0")
    assert done.returncode == 0, done.stderr
    assert 'version__ = "7.1.0"' in repository.read("bridge/__init__.py")
    assert re.search(r"^## \[Unreleased\]\n\n## \[7\.1\.0\] - \d{4}-\d\d-\d\d$", repository.read("CHANGELOG.md"), re.M)
    assert "turnbridge 7.1.0" in repository.read("share/man/man1/turnbridge.1")
    assert repository.git("describe", "--exact-match") == "v7.1.0"
    assert repository.git("log", "-1", "--format=%s") == "release: 7.1.0"
    assert repository.git("status", "--porcelain") == ""
    assert "git push" not in done.stdout, "a rehearsal must not be published"


def test_a_dirty_tree_is_refused(repository: Repository) -> None:
    """Also a file that git does not know."""
    (repository.path / "note.txt").write_text("x")
    assert "note.txt" in repository.refusal("7.1.0")


def test_an_untested_tree_is_refused(repository: Repository) -> None:
    """Never tested, or changed since."""
    repository.commit("README.md", "changed\n")
    assert "scripts/test has not passed on this commit." in repository.refusal("7.1.0")
    (repository.path / ".cache/tested").unlink()
    assert "scripts/test has not passed on this commit." in repository.refusal("7.1.0")


def test_a_changelog_without_news_is_refused(repository: Repository) -> None:
    repository.commit("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n## [0.0.1] - 2026-01-01\n\n" + ENTRY)
    repository.mark_tested()
    assert "nothing under [Unreleased]" in repository.refusal("7.1.0")


@pytest.mark.parametrize(
    ("version", "about"), [("0.0.9", "not newer"), ("7.1", "not a version"), ("v7.1.0", "not a version")]
)
def test_a_wrong_version_is_refused(repository: Repository, version: str, about: str) -> None:
    assert about in repository.refusal(version)


def test_a_failure_restores_the_tree(repository: Repository) -> None:
    """Here a generated file cannot be written, after the version was."""
    repository.commit("scripts/reference", "#!/usr/bin/env python3\nraise SystemExit('no')\n")
    repository.mark_tested()
    assert "scripts/reference" in repository.refusal("7.1.0")
    assert "7.1.0" not in repository.read("bridge/__init__.py")


def test_the_changelog_keeps_its_form() -> None:
    """Keep a Changelog: versions from new to old, with dates, and these kinds of changes."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (.+)$", text, re.M)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\w*\] - \d{4}-\d\d-\d\d", version) for version in versions[1:])
    kinds = set(re.findall(r"^### (.+)$", text, re.M))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
