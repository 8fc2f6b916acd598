"""docs/settings.md is generated: it lists every setting, and matches the declarations."""

from __future__ import annotations

import subprocess
import sys

from harness import ROOT

from bridge.settings import SETTINGS

PAGE = ROOT / "docs" / "settings.md"


def test_the_page_is_what_the_code_generates() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/settings-page", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_setting_has_a_row_with_its_variable_and_flags() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, setting in SETTINGS.items():
        (row,) = [line for line in text.splitlines() if f"| `{setting.variable}` |" in line]
        assert name == "config" or row.startswith(f"| `{name}` | ")
        assert all(f"`{flag}`" in row for flag in setting.flags)


def test_every_setting_is_declared_in_full() -> None:
    """A help text, a group, and a variable and flags that no other setting has."""
    for setting in SETTINGS.values():
        assert setting.help.endswith(".")
        assert setting.group
    variables = [setting.variable for setting in SETTINGS.values()]
    flags = [flag for setting in SETTINGS.values() for flag in setting.flags]
    assert len({*variables, *flags}) == len(variables) + len(flags)


def test_the_settings_of_readme_exist_with_these_defaults() -> None:
    """The short list of the README names variables that exist; plain defaults are those of the code."""
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Settings")[2].partition("\n## ")[0]
    known = {setting.variable: setting for setting in SETTINGS.values()}
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines() if line.startswith("| `")]
    assert rows
    for row in rows:
        variables, defaults = (cell.replace("`", "").split(", ") for cell in row)
        for variable, default in zip(variables, defaults, strict=True):
            assert default == known[variable].default
