"""Reports that are kept, byte for byte. REWRITE_GOLDEN=1 writes them anew: look at what changed."""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).with_name("golden")


def check_golden(name: str, found: bytes) -> None:
    """The same as in the file of this name."""
    path = GOLDEN / name
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_bytes(found)
    assert found == path.read_bytes()
