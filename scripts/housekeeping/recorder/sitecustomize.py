"""Records which files of the bridge a process passes through. Python imports this at start when its directory is on
PYTHONPATH; `walks.py` puts it there and reads the file that it writes at exit.

Only the main thread is recorded, and nothing that runs while a module is imported: decorators and class bodies say
nothing about the path of a request.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from types import FrameType
from typing import Any

PACKAGE = os.environ["WALKS_PACKAGE"] + os.sep
ENTRY = PACKAGE + "__main__.py"

entries: list[tuple[float, str]] = []
importing = 2  # `site`, which imports this module, and this module itself: `record` sees only their returns


def record(frame: FrameType, event: str, _: Any) -> None:
    global importing
    if event not in ("call", "return"):
        return
    code = frame.f_code
    if code.co_name == "<module>":
        if code.co_filename != ENTRY:
            importing += 1 if event == "call" else -1
    elif event == "call" and not importing and code.co_filename.startswith(PACKAGE):
        entries.append((time.monotonic(), code.co_filename[len(PACKAGE) :]))


def save() -> None:
    sys.setprofile(None)
    with open(os.environ["WALKS_OUTPUT"], "w") as file:
        json.dump(entries, file)


atexit.register(save)
sys.setprofile(record)
