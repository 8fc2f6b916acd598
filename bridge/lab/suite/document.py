"""A file becomes a document: YAML or JSON, by its name."""

from __future__ import annotations

from pathlib import Path

from bridge.lab.suite.faults import Fault, Faults
from bridge.lab.suite.json_nodes import read_json
from bridge.lab.suite.nodes import Document, Unreadable, put_together
from bridge.lab.suite.yaml_nodes import read_yaml

MAX_BYTES = 5_000_000
ENDINGS = (".yaml", ".yml", ".json")


def read_document(path: Path, faults: Faults) -> Document | None:
    """The document in a file; None, and a fault, when it cannot be read."""
    try:
        return _read(path, faults)
    except Unreadable as error:
        faults.add(Fault(path, error.line, (), error.said, error.column))
    return None


def _read(path: Path, faults: Faults) -> Document:
    if path.suffix not in ENDINGS:
        raise Unreadable(f"the name of a suite's file ends in {', '.join(ENDINGS)}", 0)
    try:
        # A pipe or a device could be waited for, or read, for ever.
        if path.exists() and not path.is_file():
            raise Unreadable("not a file", 0)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}", 0) from None
    if len(content) > MAX_BYTES:
        raise Unreadable(f"larger than {MAX_BYTES:,} bytes", 0)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8", content.count(b"\n", 0, error.start) + 1) from None
    node = read_json(text) if path.suffix == ".json" else read_yaml(text)
    return put_together(node, path, faults)
