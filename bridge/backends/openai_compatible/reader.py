"""The body of an answer: a stream of chunks, or, from some servers although a stream was asked for, one JSON object."""

from __future__ import annotations

from bridge.backends.upstream.sse import SseReader


class ChatReader(SseReader):
    """As SseReader; a body that begins like JSON is one event, and complete when it ends.

    The first byte decides: what such a server writes into its headers cannot be relied on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begun = False
        self._body: list[bytes] | None = None
        self._body_size = 0

    def _split(self, chunk: bytes) -> list[bytes]:
        if not self._begun:
            head = chunk.lstrip()
            if not head:
                return []
            self._begun = True
            self._body = [] if head[:1] in (b"{", b"[") else None
        if self._body is None:
            return super()._split(chunk)
        self._body.append(chunk)
        self._body_size += len(chunk)
        self._check(self._body_size)
        return []

    def finish(self) -> list[bytes]:
        if self._body is None:
            return super().finish()
        self.done = True
        return [b"".join(self._body)]
