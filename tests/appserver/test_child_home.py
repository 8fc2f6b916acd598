"""The home that the child gets: the user's login, providers and models, and nothing else."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from bridge.appserver.codex_home import prepare_child_home, read_codex_home
from bridge.errors import NotReady


def user_home(path: Path, config: str = 'model = "m"\nnotify = ["run-me"]\n') -> Path:
    """An ordinary CODEX_HOME."""
    path.mkdir()
    (path / "config.toml").write_text(config)
    (path / "AGENTS.md").write_text("Speak Latin.")
    (path / "prompts").mkdir()
    return path


def prepare(directory: Path) -> Path:
    """The child's home for `home` in a directory."""
    return prepare_child_home(read_codex_home(directory / "home"), directory / "state")


def test_it_holds_what_may_pass_and_links_to_the_login(tmp_path: Path) -> None:
    """In a private directory; the links are there before the login is."""
    home = user_home(tmp_path / "home")
    made = prepare(tmp_path)
    assert sorted(path.name for path in made.iterdir()) == [".env", "auth.json", "config.toml"]
    assert tomllib.loads((made / "config.toml").read_text()) == {"model": "m"}
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert stat.S_IMODE((made / "config.toml").stat().st_mode) == 0o600
    (home / "auth.json").write_text("login")
    assert (made / "auth.json").read_text() == "login"


def test_what_codex_writes_to_the_login_is_the_users(tmp_path: Path) -> None:
    """Codex writes auth.json in place."""
    home = user_home(tmp_path / "home")
    (prepare(tmp_path) / "auth.json").write_text("refreshed")
    assert (home / "auth.json").read_text() == "refreshed"


def test_it_is_renewed_at_each_start(tmp_path: Path) -> None:
    """A changed config.toml counts from the child's next start; a link that was replaced is a link again."""
    home = user_home(tmp_path / "home")
    made = prepare(tmp_path)
    (home / "config.toml").write_text('model = "n"')
    (made / "auth.json").unlink()
    (made / "auth.json").write_text("stray")
    assert prepare(tmp_path) == made
    assert tomllib.loads((made / "config.toml").read_text()) == {"model": "n"}
    assert (made / "auth.json").readlink() == home / "auth.json"
    assert not list(made.glob("*.new"))


def test_each_home_has_its_own(tmp_path: Path) -> None:
    """Two homes never share a child's."""
    user_home(tmp_path / "home")
    other = prepare_child_home(read_codex_home(tmp_path / "other"), tmp_path / "state")
    assert other != prepare(tmp_path)


def test_a_login_in_the_keyring_needs_the_users_own_home(tmp_path: Path) -> None:
    """Everything but AGENTS.md can be switched off there; with one, the error names the remedy."""
    home = user_home(tmp_path / "home", 'cli_auth_credentials_store = "keyring"')
    with pytest.raises(NotReady, match=r"AGENTS\.md.*cli_auth_credentials_store") as refused:
        prepare(tmp_path)
    assert refused.value.code == "codex_home_not_usable"
    (home / "AGENTS.md").unlink()
    assert prepare(tmp_path) == home


def test_a_state_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """With the remedy."""
    user_home(tmp_path / "home")
    (tmp_path / "state").write_text("a file")
    with pytest.raises(NotReady, match="XDG_STATE_HOME"):
        prepare(tmp_path)
