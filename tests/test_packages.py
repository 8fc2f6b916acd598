"""What the packages promise: versions, extras, licences, and a lock file for the development environment."""

from __future__ import annotations

import re
import tomllib
from types import ModuleType

import pytest
from harness import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_bench import loaded

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LOCK = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
LOCKED_EXTRAS = ("test", "dev", "otel", "docs", "package")


def locked() -> dict[str, set[str]]:
    """The versions in the lock file; for some packages they differ by Python."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s;]+)", LOCK, re.M):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


def requirements(lines: list[str]) -> list[Requirement]:
    """Without the project's own extras."""
    return [each for each in map(Requirement, lines) if each.name != PROJECT["name"]]


@pytest.fixture
def licences(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    directory = ROOT / "scripts/packaging"
    monkeypatch.syspath_prepend(str(directory))
    return loaded("licences", monkeypatch, directory)


def test_every_dependency_has_a_lower_and_an_upper_bound() -> None:
    """Those of an installation: the next major version may need a change here."""
    for each in requirements(PROJECT["dependencies"] + EXTRAS["all"] + EXTRAS["otel"] + EXTRAS["codex"]):
        operators = {bound.operator for bound in each.specifier}
        assert operators in ({">=", "<"}, {"=="}), each


def test_all_has_every_extra_of_an_installation() -> None:
    (everything,) = map(Requirement, EXTRAS["all"])
    development = {"all", "test", "dev", "docs", "fuzz", "package"}
    assert everything.extras == set(EXTRAS) - development


def test_the_lock_file_has_what_the_extras_ask_for() -> None:
    """With hashes, and from nowhere in particular. If this fails, run scripts/lock."""
    versions = locked()
    wanted = requirements([*PROJECT["dependencies"], *(line for extra in LOCKED_EXTRAS for line in EXTRAS[extra])])
    for each in wanted:
        found = versions.get(canonicalize_name(each.name), set())
        assert found, f"{each.name} is not locked"
        assert all(each.specifier.contains(version) for version in found), (each, found)
    blocks = re.split(r"\n(?=\S)", LOCK)
    unhashed = [block for block in blocks if "==" in block and "--hash=sha256:" not in block]
    assert unhashed == []
    assert "://" not in LOCK


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MIT OR Apache-2.0", True),
        ("GPL-3.0-only OR MIT", True),
        ("Apache-2.0 AND BSD-3-Clause", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-or-later", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_if_one_of_its_alternatives_is(
    licences: ModuleType, expression: str, allowed: bool
) -> None:
    assert licences.is_allowed(expression) is allowed


def test_licences_are_read_from_old_and_new_metadata(licences: ModuleType) -> None:
    def read(expression: str | None = None, classifiers: tuple[str, ...] = (), text: str = "") -> str:
        return str(licences.licences_of({"expression": expression, "classifiers": classifiers, "text": text}))

    assert read("MIT OR Apache-2.0", ("License :: OSI Approved :: BSD License",)) == "MIT OR Apache-2.0"
    assert read(None, ("License :: OSI Approved", "License :: OSI Approved :: BSD License")) == "BSD-3-Clause"
    assert read(None, (), "MIT License\n\nPermission is hereby granted") == "MIT"
    assert read(None, ("Topic :: Internet",)) == ""
