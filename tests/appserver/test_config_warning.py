"""What is read of Codex's warnings about its configuration."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.appserver.failures import ConfigWarning, read_config_warning

IGNORED = "Codex is ignoring 1 unrecognized configuration setting."


def test_a_warning_is_one_line() -> None:
    """Summary and details follow each other, whatever their line ends."""
    warning = read_config_warning({"summary": "Invalid configuration; using defaults.", "details": "a\n  b\nc"})
    assert warning is not None
    assert str(warning) == "Invalid configuration; using defaults. a b c"
    assert warning.is_fatal


def test_a_setting_that_codex_does_not_know_is_not_fatal() -> None:
    """The rest of config.toml is used."""
    warning = read_config_warning({"summary": IGNORED, "details": None})
    assert warning == ConfigWarning(IGNORED)
    assert not warning.is_fatal


@pytest.mark.parametrize(
    "params",
    [{"summary": "Codex could not find bubblewrap on PATH."}, {}, {"summary": 5}, {"summary": " ", "details": "x"}],
)
def test_what_is_not_about_the_configuration_is_no_warning(params: dict[str, Any]) -> None:
    """Nor is a notification of another shape."""
    assert read_config_warning(params) is None


@pytest.mark.parametrize(
    ("is_ours", "shown"),
    [(True, "config.toml: `nope` not found"), (False, "config.toml:3:17: `nope` not found")],
)
def test_the_users_file_is_meant(is_ours: bool, shown: str) -> None:
    """Its name without a path, which may have blanks in it; the lines of the bridge's own copy are not the user's."""
    warning = ConfigWarning("Invalid configuration; using defaults.", "/a b/home/config.toml:3:17: `nope` not found")
    assert warning.without_path("/a b/home", is_ours=is_ours).details == shown
