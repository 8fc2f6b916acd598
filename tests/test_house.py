"""`scripts/house`: the sizes, the modules with one importer, and the exit code."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from test_bench import loaded
from warm import ROOT

DIRECTORY = ROOT / "scripts" / "housekeeping"


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("run", monkeypatch, DIRECTORY)


def ran(*options: str, directory: Path = DIRECTORY) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, directory / "run.py", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_every_package_has_a_budget(house: ModuleType) -> None:
    packages = {path.parent.name for path in (ROOT / "bridge").glob("*/__init__.py")}
    assert packages <= set(house.budgets()), "run scripts/house --set-budgets for the new package"


def test_the_numbers_are_those_of_the_files(house: ModuleType) -> None:
    _, total = house.sizes(house.modules())
    files = list((ROOT / "bridge").rglob("*.py"))
    assert (total.lines, total.files) == (sum(path.read_text().count("\n") for path in files), len(files))
    shown = ran("--quick").stdout
    assert shown.startswith(f"size: {total.lines:,} lines in {total.files} files")
    assert f"{total.code:,} of them code" in shown


def test_code_is_neither_blank_nor_comment_nor_docstring(house: ModuleType) -> None:
    text = '"""A\nmodule."""\n\nX = 1\n"""About X."""\n# why\n\n\ndef f():\n    """One."""\n    return "a # b"\n'
    assert house.Module(house.PACKAGE / "core/x.py", text).code == 3
    assert "lines of code in the edge" in ran().stdout


def test_a_module_with_one_importer_is_found(house: ModuleType) -> None:
    """In its own package; an import inside a function counts, `__init__.py` and foundations do not."""
    texts = {
        "core/__init__.py": "",
        "core/alone.py": "",
        "core/shared.py": "",
        "core/user.py": "from bridge.core import alone\nfrom bridge.core.shared import x\nimport bridge.errors\n",
        "core/other.py": "def f():\n    from bridge.core.shared import x\n",
        "app/apart.py": "",
        "app/deep.py": "",
        "app/lazy.py": "def f():\n    import bridge.app.deep\n",
        "cli/far.py": "from bridge.app.apart import x\n",
        "errors.py": "",
    }
    found = [house.Module(house.PACKAGE / name, text) for name, text in texts.items()]
    assert [(str(module), user) for module, user in house.sections(found)] == [
        ("app/deep.py", "app/lazy.py"),
        ("core/alone.py", "core/user.py"),
    ]


def test_files_that_name_a_client_protocol(house: ModuleType) -> None:
    """Outside its package, and not where the same company is a provider."""
    texts = {
        "protocols/gemini/encoder.py": "GEMINI = 1\n",
        "protocols/registry.py": "from bridge.protocols.gemini.protocol import GEMINI\n",
        "routing/plan.py": '"gemini"\n',
        "server/gate.py": "messages = 1\n",
        "server/pages.py": '"""Anthropic\'s."""\n',
        "server/turns.py": "GEMINIS = 1\n",
    }
    found = [house.Module(house.PACKAGE / name, text) for name, text in texts.items()]
    assert [str(each) for each in house.naming(found, "gemini")] == ["protocols/registry.py", "server/turns.py"]
    assert [str(each) for each in house.naming(found, "messages")] == ["server/pages.py"]
    assert [str(each) for each in house.touching(found, "GEMINI")] == [
        "protocols/gemini/encoder.py",
        "protocols/registry.py",
    ]


def test_no_client_protocol_is_named_in_more_files_than_allowed(house: ModuleType) -> None:
    """Each example of a change names something that exists."""
    found = house.modules()
    assert all(1 <= len(house.naming(found, name)) <= house.MOST_NAMES for name in house.PROTOCOLS)
    assert all(house.touching(found, name) for _, name, _ in house.EXAMPLES)


def test_translated_phrases_are_recognised(house: ModuleType) -> None:
    for phrase in (
        "--outcome x is none.",
        "Whoever asks",
        "it is no message",
        "the turn goes on alone",
        "it was told so",
    ):
        assert house.PHRASES.search(phrase), phrase
    for phrase in (
        "It is no longer served.",
        "there is no such model",
        "There is no key.",
        "It goes on to say more.",
        "The key is invalid.",
    ):
        assert not house.PHRASES.search(phrase), phrase


def test_a_package_above_its_budget_fails_the_check_and_its_budget_can_be_raised(tmp_path: Path) -> None:
    """By lines or by files. The message names the package, the budget and the remedy."""
    directory = tmp_path / "scripts" / "housekeeping"
    directory.mkdir(parents=True)
    for name in ("run.py", "walks.py"):
        shutil.copy(DIRECTORY / name, directory)
    core, other = tmp_path / "bridge/core", tmp_path / "bridge/app"
    core.mkdir(parents=True)
    other.mkdir()
    (core / "a.py").write_text("x = 1\n" * 50)
    (other / "b.py").write_text("")
    budgets = directory / "budgets.toml"
    budgets.write_text("core = { lines = 50, files = 1 }\napp = { lines = 0, files = 1 }\n")
    assert ran("--quick", directory=directory).returncode == 0
    for name, lines in (("a.py", 51), ("c.py", 0)):
        (core / name).write_text("x = 1\n" * lines)
        done = ran("--quick", directory=directory)
        assert done.returncode == 1
        assert "core has 51 lines in" in done.stdout
        assert "--set-budgets core" in done.stdout
        assert "app has" not in done.stdout
        assert ran("--set-budgets", "core", directory=directory).returncode == 0
        assert ran("--quick", directory=directory).returncode == 0
    kept = tomllib.loads(budgets.read_text())
    assert kept == {"core": {"lines": 100, "files": 2}, "app": {"lines": 0, "files": 1}}
    assert "Unknown package 'nope'" in ran("--set-budgets", "nope", directory=directory).stderr


@pytest.mark.deep
def test_walks_are_measured() -> None:
    done = ran("--walks")
    assert done.returncode == 0, done.stderr
    for walk in ("one delta", "one request", "one `replay --verify`", "one lab cell"):
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(walk) and "target" not in line]
        assert " / " in line
