"""The workflows, hooks and templates of the public repository: valid, pinned, and naming scripts that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SCRIPT = re.compile(r"(?<![\w/.-])scripts/[\w-]+")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs(workflow: Path) -> dict[str, Any]:
    found: dict[str, Any] = read(workflow)["jobs"]
    return found


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(workflow).values():
        yield from job.get("steps", ())


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
class TestWorkflow:
    def test_it_may_only_read_unless_a_job_says_more(self, workflow: Path) -> None:
        assert read(workflow)["permissions"] == {"contents": "read"}

    def test_actions_are_pinned_to_a_commit(self, workflow: Path) -> None:
        """A tag can be moved. The version stands beside it, for people and for dependabot."""
        for line in workflow.read_text(encoding="utf-8").splitlines():
            if (used := re.search(r"uses: (?!\./)(\S+)", line)) is not None:
                assert re.search(r"@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line), used[1]

    def test_a_checkout_keeps_no_token(self, workflow: Path) -> None:
        for step in steps(workflow):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False

    def test_commands_contain_no_text_from_outside(self, workflow: Path) -> None:
        """What GitHub fills into a command is run as a part of it; variables are not."""
        assert [step["run"] for step in steps(workflow) if "${{" in step.get("run", "")] == []

    def test_every_job_has_an_end(self, workflow: Path) -> None:
        """A job that calls another workflow has that one's limits."""
        assert [
            name for name, job in jobs(workflow).items() if "timeout-minutes" not in job and "uses" not in job
        ] == []

    def test_scripts_exist(self, workflow: Path) -> None:
        named = {script for step in steps(workflow) for script in SCRIPT.findall(step.get("run", ""))}
        assert [script for script in named if not os.access(ROOT / script, os.X_OK)] == []


def test_tests_run_on_each_system_and_each_supported_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    matrix = jobs(GITHUB / "workflows/test.yml")["test"]["strategy"]["matrix"]
    assert matrix == {"os": ["ubuntu-latest", "macos-latest"], "python": supported}


def test_a_release_is_published_after_all_tests_and_without_a_token() -> None:
    found = jobs(GITHUB / "workflows/release.yml")
    assert set(found["publish"]["needs"]) == {"test", "build"}
    assert found["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (GITHUB / "workflows/release.yml").read_text(encoding="utf-8")


def test_hooks_run_programs_of_the_development_environment() -> None:
    """Nothing is downloaded, and every script exists."""
    for repository in read(ROOT / ".pre-commit-config.yaml")["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            assert hook["language"] == "system"
            program, *words = hook["entry"].split()
            assert program.startswith((".venv/bin/", "scripts/"))
            for script in SCRIPT.findall(hook["entry"]):
                assert os.access(ROOT / script, os.X_OK), script
            assert words or program == "scripts/check"


def test_templates_ask_for_something() -> None:
    for template in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")):
        found = read(template)
        if template.stem != "config":
            asked = [entry for entry in found["body"] if entry["type"] != "markdown"]
            assert len({entry["id"] for entry in asked}) == len(asked) > 0
            assert all(entry["attributes"]["label"] for entry in asked)
            assert any(entry.get("validations", {}).get("required") for entry in asked)


def test_published_files_have_no_secrets(tmp_path: Path) -> None:
    """And a secret would be found: its beginning is reported, not the whole."""
    command: list[str | Path] = [sys.executable, ROOT / "scripts/secrets"]
    published = [path for name in ("fixtures", "docs", "deploy", ".github") for path in (ROOT / name).rglob("*")]
    done = subprocess.run([*command, *published], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    planted = tmp_path / "log.ndjson"
    planted.write_text('{"text": "use sk-' + "a1b2c3d4" * 4 + '"}\n')
    done = subprocess.run([*command, planted], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "log.ndjson has what looks like a secret: sk-a1b… (35 characters)" in done.stderr
