"""Variants that a person writes: a YAML or JSON file that names the blocks it replaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from bridge.errors import UsageError
from bridge.lab.variant import OBJECT_ARGUMENTS, SHIPPED, LabVariant
from bridge.tools.instructions import Variant

_MEMBERS = {"name", "base", "blocks", "arguments", "nonce"}


def find_variant(text: str) -> LabVariant:
    """What was typed: the name of a shipped variant, or the path of a file. Raises UsageError."""
    if text in SHIPPED:
        return SHIPPED[text]
    path = Path(text)
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise UsageError(f"--variant {text[:80]}: choose one of {', '.join(SHIPPED)}, or give a .yaml file.")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--variant {path}: {error.strerror}.") from None
    except yaml.YAMLError as error:
        # Its own sentence names no file, and takes several lines.
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UsageError(f"--variant {where}: {getattr(error, 'problem', None) or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--variant {path}: {error}") from None
    return _variant(data, path)


def _variant(data: Any, path: Path) -> LabVariant:
    """`name` (else the file's), `base` (a shipped variant), `blocks` (texts, or {file: PATH}), `arguments`, `nonce`."""

    def wrong(what: str) -> UsageError:
        return UsageError(f"{path}: {what}")

    if not isinstance(data, dict) or not isinstance(data.get("blocks", {}), dict):
        raise wrong("a variant is an object with `blocks`, an object of texts by name.")
    if unknown := [str(name) for name in data if name not in _MEMBERS]:
        raise wrong(f"unknown {', '.join(unknown)}; known are {', '.join(sorted(_MEMBERS))}.")
    base = SHIPPED.get(str(data.get("base", "spec")))
    if base is None or base.native:
        raise wrong(f"base is one of {', '.join(name for name, each in SHIPPED.items() if not each.native)}.")
    arguments, nonce = data.get("arguments", base.wording.arguments), data.get("nonce", base.nonce)
    if arguments not in ("string", "object"):
        raise wrong("arguments is string or object.")
    if not isinstance(nonce, bool):
        raise wrong("nonce is true or false.")
    name = str(data.get("name") or path.stem)
    if name in SHIPPED:
        raise wrong(f"{name} is the name of a shipped variant; give it another one.")
    blocks = {str(block): _text(text, path) for block, text in data.get("blocks", {}).items()}
    try:
        wording = Variant(name, {**base.wording.blocks, **blocks}, arguments)
    except ValueError as error:
        raise wrong(str(error)) from None
    return LabVariant(name, wording, nonce=nonce, allows=OBJECT_ARGUMENTS if arguments == "object" else frozenset())


def _text(text: Any, path: Path) -> str:
    if isinstance(text, dict) and isinstance(text.get("file"), str):
        try:
            return (path.parent / str(text["file"])).read_text(encoding="utf-8").rstrip("\n")
        except OSError as error:
            raise UsageError(f"{path}: {text['file']}: {error.strerror}.") from None
        except ValueError as error:
            raise UsageError(f"{path}: {text['file']}: {error}") from None
    if not isinstance(text, str):
        raise UsageError(f"{path}: a block is a text, or an object with `file`.")
    return text.rstrip("\n")
