"""How far a run is: one line on a terminal, nothing in a pipe; and what went wrong, told once for each kind."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress

import trio

from bridge.cli.streams import say
from bridge.lab.result import Result

EVERY = 0.2
LONGEST = 400
"""Characters of an error's message that are told."""


class Progress:
    """Counts results and shows them."""

    def __init__(self, total: int) -> None:
        self.count = 0
        self._total = total
        self._passed = 0
        self._tokens = 0
        self._errors: dict[str, tuple[int, str]] = {}
        """By code: how many, and the first one's message."""
        self._failed = 0
        self._started = time.monotonic()
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def told(self, result: Result) -> None:
        """One more is done."""
        self.count += 1
        self._passed += result.passed
        self._tokens += result.input_tokens + result.output_tokens
        if result.error is not None:
            self._failed += 1
            code = result.error["code"]
            count, message = self._errors.get(code, (0, result.error["message"]))
            self._errors[code] = count + 1, message

    async def run(self) -> None:
        """Show how far it is, until cancelled: also while nothing comes."""
        while self._terminal:
            self._show()
            await trio.sleep(EVERY)

    def end(self) -> None:
        """Take the line away, and tell what went wrong."""
        if self._terminal:
            self._write("\r\x1b[K")
        for code, (count, message) in self._errors.items():
            shown = message if len(message) <= LONGEST else message[:LONGEST] + "…"
            say("note", f"{count} request(s) failed and are not counted: {code}: {shown}")

    def _show(self) -> None:
        done = self.count / max(self._total, 1)
        bar = ("█" * int(done * 20)).ljust(20, "░")
        parts = [f"{bar} {self.count}/{self._total}", f"{self._passed} passed", f"{self._failed} errors"]
        if self.count:
            left = (time.monotonic() - self._started) * (1 / done - 1)
            parts += [f"{left:.0f} s left", f"{self._tokens:,} tokens"]
        # One column less than there are: a full line makes some terminals begin a new one.
        self._write("\r\x1b[K" + "  ".join(parts)[: shutil.get_terminal_size((80, 24)).columns - 1])

    def _write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
