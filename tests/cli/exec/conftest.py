"""The command for the tests of this room."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.exec.command import Command, environment
from server.prompted import MODEL, prompted_codex


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """The command in an empty home."""
    return Command(tmp_path, environment(tmp_path))


@pytest.fixture(scope="module")
def codex(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command in front of a child that does what the prompt says (see `command.steps`)."""
    directory = tmp_path_factory.mktemp("prompted")
    settings = environment(directory, CODEX_BIN=str(prompted_codex(directory)), PROXY_MODELS=MODEL)
    return Command(directory, settings, ("--model", MODEL))


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command for tables of many runs; its directory and its files are shared by all of them."""
    directory = tmp_path_factory.mktemp("warm")
    return Command(directory, environment(directory))
