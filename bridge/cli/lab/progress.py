"""How far a run is: one line on a terminal, nothing in a pipe."""

from __future__ import annotations

import sys
import time

from bridge.lab.result import Result

EVERY = 0.1


class Progress:
    """Counts results and shows them."""

    def __init__(self, total: int) -> None:
        self.count = 0
        self._total = total
        self._passed = 0
        self._errors = 0
        self._tokens = 0
        self._started = time.monotonic()
        self._shown = 0.0
        self._terminal = sys.stderr.isatty()

    def told(self, result: Result) -> None:
        """One more is done."""
        self.count += 1
        self._passed += result.passed
        self._errors += result.status == "error"
        self._tokens += result.input_tokens + result.output_tokens
        now = time.monotonic()
        if self._terminal and (now - self._shown > EVERY or self.count == self._total):
            self._shown = now
            self._show(now - self._started)

    def clear(self) -> None:
        """Take the line away."""
        if self._terminal and self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _show(self, seconds: float) -> None:
        done = self.count / max(self._total, 1)
        bar = "█" * int(done * 20)
        left = seconds / done - seconds if done else 0
        sys.stderr.write(
            f"\r\x1b[K{bar:<20} {self.count}/{self._total}  {self._passed} passed  {self._errors} errors  "
            f"{self._tokens:,} tokens  {left:.0f} s left"[:100]
        )
        sys.stderr.flush()
