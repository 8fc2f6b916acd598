"""What comes from a child, read by read: each line goes to its turn or to the RPC peer. Pure.

Each touched turn is woken once per read. What cannot be read fails the turn that it belongs to, and no other.
"""

from __future__ import annotations

from bridge.appserver.counts import ChildCounts
from bridge.appserver.framing import LineSplitter
from bridge.appserver.routes import Decoder, Routes
from bridge.appserver.rpc import Peer
from bridge.appserver.tap import Owner, Tap
from bridge.errors import BackendProtocolError

LINE_HEAD = 512
"""How far into a line the name of its thread is looked for."""


class Incoming:
    """Bytes in; `routes`, `peer` and `tap` hear of what they say. The peer may have something to send afterwards."""

    def __init__(self, routes: Routes, peer: Peer, tap: Tap | None, counts: ChildCounts) -> None:
        self._routes = routes
        self._peer = peer
        self._tap = tap
        self._counts = counts
        self._splitter = LineSplitter()
        self.decoder: Decoder | None = None
        """Of the child's dialect; None until it is known, when there are no turns."""

    def feed(self, data: bytes) -> None:
        """What one read gave."""
        self._take(self._splitter.feed(data))

    def finish(self) -> None:
        """Nothing more will come: what is left counts as a line."""
        self._take(self._splitter.finish())

    def _take(self, lines: list[bytes]) -> None:
        """All lines of one read. Hot: no await, and for a delta no more than one JSON parse and one append."""
        tap = self._tap
        self._counts.reads += 1
        self._counts.lines += len(lines)
        if tap is not None:
            tap.begin_read()
        try:
            self._take_lines(lines)
        finally:
            if tap is not None:
                tap.end_read()
        self._routes.wake_touched()

    def _take_lines(self, lines: list[bytes]) -> None:
        if self.decoder is not None:
            self._take_turns(lines, self.decoder)
        else:
            for line in lines:
                self._peer.receive(line)
        for head in self._splitter.oversize:
            self._oversize(head)
        self._splitter.oversize.clear()

    def _take_turns(self, lines: list[bytes], decoder: Decoder) -> None:
        tap, receive, get = self._tap, self._peer.receive, self._routes.get
        delta_start, read_delta, touched = decoder.delta, decoder.read_delta, self._routes.touched
        # Adjacent deltas, for the tap.
        run: list[bytes] = []
        texts: list[str] = []
        owners: list[Owner] = []
        for line in lines:
            if line.startswith(delta_start):
                try:
                    key, item, delta = read_delta(line)
                    turn = get(key)
                except (ValueError, KeyError, TypeError):
                    turn = None
                    self._lost(line)
                if turn is not None:
                    turn.text(item, delta)
                    if not turn.dirty:
                        turn.dirty = True
                        touched.append(turn)
                    if tap is not None:
                        run.append(line)
                        texts.append(delta)
                        owners.append(turn)
                    continue
            if run and tap is not None:
                tap.deltas(run, texts, owners)
                run, texts, owners = [], [], []
            # What repeats another line is dropped unread; but the log wants to know what it was.
            if tap is not None or not line.startswith(decoder.skip):
                receive(line)
        if run and tap is not None:
            tap.deltas(run, texts, owners)

    def _lost(self, line: bytes) -> None:
        """A piece of text could not be read: the answer it belongs to cannot be whole any more."""
        for turn in self._routes.named_in(line[:LINE_HEAD]):
            turn.fail(BackendProtocolError("A piece of the answer came broken from the Codex app-server. Try again."))
            self._routes.touch(turn)

    def _oversize(self, head: bytes) -> None:
        """A line too long to keep was thrown away: the turn it belonged to cannot be whole any more."""
        self._counts.oversize += 1
        if self._tap is not None:
            self._tap.lifecycle("oversize_line", {"head": head[:200].decode("utf-8", "replace")})
        for turn in self._routes.named_in(head):
            turn.fail(
                BackendProtocolError("The Codex app-server sent a message that is too large.", code="message_too_large")
            )
            self._routes.touch(turn)
