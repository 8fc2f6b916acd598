"""Settings: declared in `model`, read by `loading` and `file`; and the files that the bridge keeps for itself."""

from contextlib import suppress
from pathlib import Path

import platformdirs

from bridge import APP
from bridge.settings.loading import SETTINGS, Setting, load_settings, unknown_variables
from bridge.settings.model import Settings

__all__ = [
    "SETTINGS",
    "Setting",
    "Settings",
    "api_key_file",
    "key_store_file",
    "lab_results_dir",
    "load_settings",
    "state_dir",
    "store_file",
    "unknown_variables",
]

_FORMER_NAME = "codex-bridge"
"""The program's name before it turned out that another project owns it on PyPI."""


def state_dir() -> Path:
    """The directory of the API key, stored responses and results of `lab run`.

    The first program that looks for it renames a directory of the former name.
    """
    path, former = (Path(platformdirs.user_state_path(name)) for name in (APP, _FORMER_NAME))
    if not path.exists() and former.is_dir():
        with suppress(OSError):  # another process was faster, or it is not permitted
            former.rename(path)
    return path


def store_file() -> Path:
    """The database of stored responses, conversations and usage."""
    return state_dir() / "bridge.sqlite3"


def api_key_file() -> Path:
    """The file with the key made at first start."""
    return state_dir() / "api-key"


def key_store_file() -> Path:
    """The file with the hashes and limits of the keys made by `keys add`."""
    return state_dir() / "keys.json"


def lab_results_dir() -> Path:
    """Where `lab run` keeps its results, unless a flag names another file."""
    return state_dir() / "lab"
