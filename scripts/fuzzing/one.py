"""One target under atheris: `one.py PROGRAM TARGET` and libFuzzer's own options. Coverage is of `bridge` alone.

PROGRAM is what libFuzzer runs to run this again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).resolve().parent)]

# Modules of others are imported before instrumentation starts, so that their coverage does not count.
import hypothesis  # noqa: E402, F401
import orjson  # noqa: E402, F401
import protocols.official  # noqa: E402, F401
import pydantic  # noqa: E402, F401
import trio.testing  # noqa: E402, F401
from mutation import mutate  # noqa: E402

with atheris.instrument_imports(include=["bridge"]):
    from fuzz.targets import TARGETS


def main() -> None:
    _, program, name, *options = sys.argv

    def mutated(data: bytes, largest: int, seed: int) -> bytes:
        return mutate(data, largest, seed, atheris.Mutate)

    atheris.Setup([program, *options], TARGETS[name], custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
