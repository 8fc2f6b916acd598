"""deploy/: the unit is valid and hardened, the property list can be read, the Dockerfile copies what exists."""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from harness import ROOT
from test_bench import loaded

from bridge.settings import SETTINGS

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd/turnbridge.service"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
VARIABLES = {setting.variable for setting in SETTINGS.values()} | {"HOME", "PATH", "XDG_STATE_HOME"}
MOST_EXPOSED = 2.0
"""`systemd-analyze security`: 10 is a unit without any restriction, 0 one that may do nothing."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@pytest.fixture
def dockerfile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("dockerfile", monkeypatch, ROOT / "scripts/cleanroom")


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False)


@needs_systemd
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """Without a warning about a misspelled or outdated option."""
    text = UNIT.read_text(encoding="utf-8")
    program = tmp_path / "turnbridge"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "turnbridge.service"
    # It also checks that the program exists, and that man finds the page.
    unit.write_text(text.replace("/opt/turnbridge/bin/turnbridge", str(program)).replace("Documentation=", "# "))
    done = analyze("verify", "--man=no", unit)
    about_ours = [line for line in done.stderr.splitlines() if "turnbridge" in line]
    assert (done.returncode, about_ours) == (0, [])


@needs_systemd
def test_the_unit_is_hardened() -> None:
    done = analyze("security", "--offline=true", "--no-pager", UNIT)
    (exposed,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(exposed) <= MOST_EXPOSED, done.stdout


def test_the_unit_sets_variables_that_exist() -> None:
    named = set(re.findall(r"^Environment=(\w+)=", UNIT.read_text(encoding="utf-8"), re.M))
    assert named
    assert named <= VARIABLES


def test_the_property_list_starts_a_bridge_at_login() -> None:
    with (DEPLOY / "launchd/turnbridge.plist").open("rb") as file:
        found = plistlib.load(file)
    assert found["ProgramArguments"][1:] == ["serve"]
    assert found["Label"] == "turnbridge"
    assert found["RunAtLoad"] is True
    assert found["Umask"] == 0o077
    assert set(found["EnvironmentVariables"]) <= VARIABLES


def test_the_dockerfile_copies_files_that_exist_and_are_in_its_context(dockerfile: ModuleType) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    found = dockerfile.stages(DOCKERFILE)
    for stage in found:
        for word, rest in stage.steps:
            if word == "COPY":
                step = dockerfile.copied(rest)
                assert step.stage in {"", *(each.name for each in found)}
                if not step.stage:
                    assert all((ROOT / source).exists() for source in step.sources)
                    assert {f"!{source.rstrip('/')}" for source in step.sources} <= set(ignored)


def test_the_container_runs_as_a_user_without_rights_and_reports_its_health(dockerfile: ModuleType) -> None:
    image = dockerfile.image_of(dockerfile.stages(DOCKERFILE)[-1])
    assert image.user.split(":")[0] not in ("", "0", "root")
    assert image.command == ["turnbridge", "serve"]
    assert "/livez" in image.health[-1]
    compile(image.health[-1], "health check", "exec")
    assert set(image.environment) - {"PYTHONDONTWRITEBYTECODE"} <= VARIABLES
    assert image.volumes == [f"{image.environment['XDG_STATE_HOME']}/turnbridge"]


def test_an_instruction_that_cannot_be_run_is_refused(dockerfile: ModuleType) -> None:
    """So that a step is never silently left out of what scripts/clean-root measures."""
    with pytest.raises(ValueError, match="ADD is not an instruction"):
        dockerfile.stages("FROM debian:12-slim\nADD x y\n")
    (stage,) = dockerfile.stages("FROM a\n# why\nRUN one \\\n    # and\n    && two\nENV A=b\n")
    assert [word for word, _ in stage.steps] == ["RUN", "ENV"]
    assert stage.steps[0][1].split() == ["one", "&&", "two"]


@pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not installed")
def test_caddy_accepts_its_file(tmp_path: Path) -> None:
    command: list[str | Path] = ["caddy", "validate", "--adapter", "caddyfile", "--config", DEPLOY / "caddy/Caddyfile"]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Valid configuration" in done.stdout + done.stderr
