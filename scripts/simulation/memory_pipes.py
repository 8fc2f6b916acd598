"""Pipes in memory, which give what they hold late, and in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio
from choices import Choices


class MemoryPipe(trio.abc.ReceiveStream):
    """One direction. What a read returns, and when, is a decision of the history."""

    def __init__(self, name: str, choices: Choices, capacity: int = 65536) -> None:
        self._name = name
        self._choices = choices
        self._capacity = capacity
        self._data = bytearray()
        self._marks: deque[tuple[int, Callable[[], None]]] = deque()
        self._written = self._taken = self._reads = 0
        self._is_ended = self._is_broken = False
        self._changed = trio.Event()

    def write_now(self, data: bytes) -> int:
        """As much as there is room for; all of it where no one reads any more."""
        if self._is_broken or self._is_ended:
            return len(data)
        size = min(len(data), self._capacity - len(self._data))
        if size:
            self._data += data[:size]
            self._written += size
            self._wake()
        return size

    async def write(self, data: bytes, when_read: Callable[[], None] | None = None) -> None:
        """All of it. `when_read` is called when its last byte has been read."""
        if when_read is not None:
            self._marks.append((self._written + len(data), when_read))
        while data := data[self.write_now(data) :]:
            await self._wait()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._data and not self._is_ended:
            await self._wait()
        self._reads += 1
        delay = self._choices.rarely(f"{self._name}.delay.{self._reads}", 12, 0.0, 0.001, 0.02, 0.1)
        if delay:
            await trio.sleep(delay)
        size = self._choices.rarely(f"{self._name}.cut.{self._reads}", 6, 1 << 20, 1, 9, 80, 300)
        size = min(size, max_bytes or size)
        data = bytes(self._data[:size])
        del self._data[:size]
        self._taken += len(data)
        while self._marks and self._marks[0][0] <= self._taken:
            self._marks.popleft()[1]()
        self._wake()
        return data

    def end(self) -> None:
        """The writer is gone; what was written can still be read."""
        self._is_ended = True
        self._marks = deque((at, call) for at, call in self._marks if at <= self._written)
        self._wake()

    def break_off(self) -> None:
        """The reader is gone."""
        self._is_broken = True
        self._data.clear()
        self._wake()

    async def aclose(self) -> None:
        self.break_off()
        await trio.lowlevel.checkpoint()

    async def _wait(self) -> None:
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class PipeEnd:
    """The bridge's end of the child's stdin."""

    def __init__(self, pipe: MemoryPipe) -> None:
        self._pipe = pipe

    async def send_all(self, data: bytes) -> None:
        await self._pipe.write(data)

    async def aclose(self) -> None:
        self._pipe.end()
        await trio.lowlevel.checkpoint()
