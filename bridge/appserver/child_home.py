"""The CODEX_HOME that the child gets: the bridge's own, with only the user's login, providers and models.

Codex reads more from its home than it has switches for: AGENTS.md reaches the model, MCP servers are started, `notify`
and hooks are run, each for any client's prompt. So the child sees a private directory that holds a config.toml with
what may pass, and links to the user's login. Codex writes auth.json through the link, so a refreshed login is the
user's own.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from bridge.appserver.codex_home import CodexHome, write_toml
from bridge.errors import NotReady

_LINKED = ("auth.json", ".env")
"""The login, and the file in which Codex looks for the variables that providers read their keys from."""
_INSTRUCTIONS = ("AGENTS.md", "AGENTS.override.md")


def prepare_child_home(home: CodexHome, state: Path) -> Path:
    """Create or refresh the child's home in `state` and return its path. Raises NotReady when that fails."""
    if home.login_in_keyring:
        return _own_home(home)
    digest = hashlib.sha256(os.fsencode(home.path)).hexdigest()[:16]
    path = state / f"codex-home-{digest}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        for name in _LINKED:
            _link(path / name, home.path / name)
    except OSError as error:
        raise _unwritable(error) from error
    write_private(path / "config.toml", write_toml(home.config).encode())
    return path


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically, readable by this user only. Raises NotReady when that fails."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(error) from error


def _own_home(home: CodexHome) -> Path:
    """The user's home itself. Everything in it can be switched off except AGENTS.md."""
    for name in _INSTRUCTIONS:
        if (home.path / name).exists():
            raise NotReady(
                f"Codex keeps this login in the system's keyring, so it must run in {home.path} itself, and would show "
                f'the model {name} from there. Remove that file, or set cli_auth_credentials_store = "file" in '
                "config.toml and log in again.",
                code="codex_home_not_usable",
            )
    return home.path


def _link(link: Path, target: Path) -> None:
    """A link to `target`, which need not exist yet: a login may come later."""
    target = target.absolute()
    if link.is_symlink() and link.readlink() == target:
        return
    temporary = link.with_name(f"{link.name}.{os.getpid()}.new")
    with suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(target)
    temporary.replace(link)


def _unwritable(error: OSError) -> NotReady:
    return NotReady(
        f"The state directory cannot be written ({error.strerror}). Set XDG_STATE_HOME to one that can.",
        code="state_not_writable",
    )
