"""What a run shows on a terminal while it asks, and the errors that it reports at its end."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress

import trio

from bridge.lab.report.summary import Count
from bridge.lab.result import Result
from bridge.terminal import say

REFRESH = 0.2
MAX_MESSAGE = 400
"""Characters of an error message that are shown."""


class Progress:
    """A status line on a terminal and, at the end, one note per kind of error."""

    def __init__(self, total: int) -> None:
        self.count = Count()
        self._total = total
        self._messages: dict[str, str] = {}
        """The first message of each error code."""
        self._started = time.monotonic()
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def add(self, result: Result) -> None:
        self.count.add(result)
        if result.error is not None:
            self._messages.setdefault(result.error["code"], result.error["message"])

    async def run(self) -> None:
        """Show the status line until cancelled, also while no answer comes."""
        while self._terminal:
            self._show()
            await trio.sleep(REFRESH)

    def end(self) -> None:
        """Remove the status line and report errors."""
        if self._terminal:
            self._write("\r\x1b[K")
        for code, message in self._messages.items():
            shown = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
            say("note", f"{self.count.error_codes[code]} request(s) failed and are not counted: {code}: {shown}")

    def _show(self) -> None:
        count = self.count
        done = count.asked / max(self._total, 1)
        bar = ("█" * int(done * 20)).ljust(20, "░")
        parts = [f"{bar} {count.asked}/{self._total}", f"{count.passed} passed", f"{count.errors} errors"]
        if done:
            left = (time.monotonic() - self._started) * (1 / done - 1)
            parts += [f"{left:.0f} s left", f"{count.input_tokens + count.output_tokens:,} tokens"]
        # One column less than the terminal has: some begin a new line after a full one.
        self._write("\r\x1b[K" + "  ".join(parts)[: shutil.get_terminal_size((80, 24)).columns - 1])

    def _write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
