"""The pytest plugin: a file of cases is a file of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness import ROOT

SUITE = """\
tools:
  weather:
    description: Tells the weather
    parameters:
      type: object
      properties: {city: {type: string}}
      required: [city]
cases:
  - id: any-city
    category: single
    tools: [weather]
    messages: [{role: user, content: "How is the weather in Bern?"}]
    expect: {calls: [{name: weather, arguments: {city: {$type: string}}}]}
  - id: bern
    category: single
    tools: [weather]
    messages: [{role: user, content: "How is the weather in Bern?"}]
    expect: {calls: [{name: weather, arguments: {city: Bern}}]}
"""


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest with the plugin, on the mock models."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "bridge.lab.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-v",
        "--rootdir",
        ".",
    ]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "XDG_STATE_HOME": str(directory / "state"),
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [*command, "--lab-mock-only", *arguments],
        cwd=directory,
        env=environment,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_each_case_in_each_variant_is_a_test(tmp_path: Path) -> None:
    """One passes, one fails and tells why; nothing is left running."""
    (tmp_path / "weather.lab.yaml").write_text(SUITE)
    done = run(tmp_path, "--lab-variant", "spec", "--lab-variant", "short", "--lab-repeat", "2")
    assert done.returncode == 1, done
    assert "weather.lab.yaml::any-city[spec] PASSED" in done.stdout
    assert "weather.lab.yaml::any-city[short] PASSED" in done.stdout
    assert "weather.lab.yaml::bern[spec] FAILED" in done.stdout
    assert "weather.lab.yaml::bern[spec] - Failed: values\n" in done.stdout
    assert 'weather: city is "example"; expected "Bern".' in done.stdout
    assert 'call: weather {"city":"example"}' in done.stdout
    assert "2 failed, 2 passed" in done.stdout
    assert "turnbridge lab: asking mock-tool-call" in done.stdout


def test_a_model_that_cannot_be_asked_is_an_error_not_a_failure(tmp_path: Path) -> None:
    """It is reported as an error, separate from failures."""
    (tmp_path / "weather.lab.yaml").write_text(SUITE)
    done = run(tmp_path, "--lab-model", "no-such-model")
    assert done.returncode == 1
    assert "turnbridge lab: asking no-such-model" in done.stdout
    assert "no answer (model_not_found)" in done.stdout
    assert "weather.lab.yaml::bern[spec] ERROR" in done.stdout
    assert "2 errors" in done.stdout
    assert "failed" not in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stdout
    assert "pytest_lab.py" not in done.stdout


def test_faults_of_a_suite_name_the_line(tmp_path: Path) -> None:
    """Nothing of it is run."""
    (tmp_path / "weather.lab.yaml").write_text(SUITE.replace("category: single", "categorie: single", 1))
    done = run(tmp_path)
    assert done.returncode == 2
    assert "weather.lab.yaml:10" in done.stdout
    assert "categorie" in done.stdout
    assert "Traceback" not in done.stdout
