"""One running child: its pump, our calls, and the turns that run in it.

The reader hands everything in the pipe to the connection and never waits for a consumer. Neither calls nor turns have
tasks: the reader drives them (see `calls` and `stream`), and one clock ends what takes too long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from bridge.appserver.calls import ANSWERS, Batch, Calls, OpenToolCalls, answer_request, answer_tool_call
from bridge.appserver.connection import Connection, CurrentDecoder, LegacyDecoder, Reply
from bridge.appserver.current import CurrentTurn
from bridge.appserver.dialect import (
    ACCOUNT_CHANGES,
    ENDS,
    RATE_LIMITS,
    TOOL_CALL,
    Account,
    ChildInfo,
    WantedDialect,
    key_of,
    shake_hands,
)
from bridge.appserver.failures import CONFIG_WARNING, ERRORS, ConfigWarning, is_unconnected, read_config_warning
from bridge.appserver.legacy import LegacyTurn, choose_sends
from bridge.appserver.process import Process, StderrTail
from bridge.appserver.stream import Clock, TurnStream
from bridge.appserver.thread_cache import KEEP_SECONDS, AnswerDigest, KeptThread, KeptThreads, WarmThreads, unsubscribe
from bridge.appserver.turn import Call, ChildSettings, Limits, Routes, RunningTurn
from bridge.core.observer import Tap
from bridge.core.turn import Turn
from bridge.counts import OTHER, ChildCounts
from bridge.errors import LOG_IN, BackendCrashed, BridgeError
from bridge.exact_json import is_within_64_bits

log = logging.getLogger("bridge.child")

GONE = "The Codex app-server went away during the request. Try again."

READ_SIZE = 1024 * 1024
"""The capacity of the pipe: with many streams, a larger read means fewer writes to each client."""
READ_SIZE_LOGGED = 256 * 1024
"""With the log, a read is in memory four times; this much fits into the processor's cache."""
LAST_WORDS = 0.2
ACCOUNT_AGE = 600.0
"""Seconds between two reads of the models and the login."""


class Child:
    """A started process and the protocol with it. The supervisor runs `pump` and `handshake`."""

    def __init__(
        self,
        process: Process,
        settings: ChildSettings,
        *,
        dialect: WantedDialect = "auto",
        limits: Limits | None = None,
        tap: Tap | None = None,
        counts: ChildCounts | None = None,
    ) -> None:
        self.process = process
        self.info: ChildInfo | None = None
        self.account = Account(self.call)
        self.config_warnings: list[ConfigWarning] = []
        self.ended_requests: list[str] = []
        """The requests whose turns ran when the child was closed."""
        self.over = trio.Event()
        """The child can no longer be used: gone, or hung."""
        self.hung = False
        self.unconnected = trio.Event()
        """Codex could not connect to a provider."""
        self.lacks_roots = False
        """It does not trust its provider and must be restarted with other certificates."""
        self.idle = trio.Event()
        self.idle.set()
        self.routes = Routes()
        self.clock = Clock(self._check_time)
        self._connection = Connection(
            self.routes, on_notification=self._notification, answer=self._answer, tap=tap, counts=counts
        )
        self.calls = Calls(self._connection, due=self.clock.due, flush=self._flush, on_hung=self._hang_up)
        self._turns: dict[TurnStream, None] = {}
        self._settings = settings
        self._threads = KeptThreads(settings.kept_threads)
        self.warm = WarmThreads(settings.warm_threads)
        self._tool_calls = OpenToolCalls(self._connection.reply)
        self._wanted = dialect
        self._limits = limits or Limits()
        self._tap = tap
        self._is_reading = False
        self._unsent = b""
        """What the pipe had no room for; `_write` sends it, and everything after it."""
        self._has_unsent = trio.Event()
        self.stderr = StderrTail()
        self._closed: BridgeError | None = None
        self._account_changed = trio.Event()
        self._notices: dict[str, Callable[[dict[str, Any]], None]] = {
            RATE_LIMITS: self.account.learn_limits,
            CONFIG_WARNING: self._config_warning,
            **dict.fromkeys(ERRORS, self._failed),
            **dict.fromkeys(ACCOUNT_CHANGES, lambda _: self._account_changed.set()),
            **dict.fromkeys(ENDS, self._turn_ended),
        }
        """What a notification means to the child itself; its turn reads it too."""

    def __repr__(self) -> str:
        return f"<Child pid={self.process.pid} turns={self.turns} {self._connection!r} {self.routes!r}>"

    @property
    def turns(self) -> int:
        """How many turns run, or are being released."""
        return len(self._turns)

    @property
    def config_fault(self) -> str | None:
        """Why the child ignores its config.toml; None where it does not. The text may contain paths."""
        return next((each.details or each.summary for each in self.config_warnings if each.is_fatal), None)

    @property
    def closed(self) -> bool:
        return self._closed is not None

    # Start and end

    async def pump(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Move bytes until the child's output ends; by then every call and turn has failed."""
        async with trio.open_nursery() as nursery:
            drained = trio.Event()
            nursery.start_soon(self._write)
            nursery.start_soon(self.stderr.read, self.process.stderr, drained)
            nursery.start_soon(self.clock.run)
            nursery.start_soon(self._follow_account)
            nursery.start_soon(self._expire_threads)
            task_status.started()
            try:
                await self._read(drained)
            finally:
                self.close(BackendCrashed(GONE))
            nursery.cancel_scope.cancel()

    async def handshake(self) -> ChildInfo:
        """Introduce ourselves, learn what the child can do and which models it has, choose the dialect."""
        info = await shake_hands(self.call, self._notify, self._wanted, acts=self._settings.native_tools)
        self._connection.decode_with(CurrentDecoder() if info.dialect == "current" else LegacyDecoder())
        self.account.methods = info.methods
        await self.account.refresh()
        self.info = info
        if self._settings.ignores_system_prompt(info.dialect):
            log.warning(
                "system and developer messages of chat requests are dropped (%s dialect); "
                "PROXY_IGNORE_CLIENT_SYSTEM_PROMPT=false keeps them",
                info.dialect,
            )
        if self.account.login == "missing":
            log.warning("Codex is not logged in: only the mock models work. %s", LOG_IN)
        if self._settings.tool_mode == "native" and not info.has_native_tools:
            log.warning("this app-server has no native tools (Codex has them from 0.145 on): tools are offered in text")
        if self._tap is not None:
            about = {"version": info.version, "dialect": info.dialect, "is_codex": info.is_codex}
            self._tap.lifecycle("handshake", about)
        return info

    def close(self, error: BridgeError) -> None:
        """The child is gone or given up: all its calls and turns fail with `error`."""
        self.over.set()
        if self._closed is None:
            self._closed = error
            running = [stream.running for stream in self._turns]
            self.ended_requests = [turn.req_id for turn in running if turn.req_id and not turn.finished]
            self.calls.close(error)
            self.routes.fail_all(error)
            for stream in list(self._turns):
                stream.abandon(error)

    def _hang_up(self) -> None:
        self.hung = True
        self.over.set()

    async def _follow_account(self) -> None:
        """Read the models and the login again, now and then and when the account has changed."""
        while True:
            with trio.move_on_after(ACCOUNT_AGE):
                await self._account_changed.wait()
            self._account_changed = trio.Event()
            if self.info is not None:
                with suppress(BridgeError):
                    await self.account.refresh()

    # Calls and turns

    async def call(self, method: str, params: Any) -> Any:
        """One RPC. Raises RpcError, BackendTimeout, or what the child was closed with."""
        return await self.calls.call(Call(method, params), self._limits.rpc)

    def offers_natively(self, turn: Turn) -> bool:
        """Whether the functions of a turn are offered natively; in text, integers of any size keep their digits."""
        wanted = self._settings.tool_mode == "native" if turn.native is None else turn.native
        if not wanted or self.info is None or not self.info.has_native_tools:
            return False
        return all(is_within_64_bits(tool.parameters) for tool in turn.functions)

    def start(self, turn: Turn, req_id: str | None = None) -> TurnStream:
        """Start a turn. Every failure arrives as the stream's Finished event; raises only when the child is closed."""
        if self._closed is not None:
            raise self._closed
        running = self._make_turn(turn)
        running.req_id = req_id
        stream = TurnStream(self, running, self._limits)
        if running.resumes is not None:
            # At once: Codex may ask for an output, or the client may leave, before the first call is answered.
            self.routes.register(running.resumes, running)
            if self._tap is not None:
                self._tap.claim(running.resumes, req_id)
        if not self._turns:
            self.idle = trio.Event()
        self._turns[stream] = None
        stream.start()
        return stream

    def _make_turn(self, turn: Turn) -> RunningTurn:
        assert self.info is not None
        info, settings = self.info, self._settings.narrowed(turn.narrowed)
        if info.dialect == "legacy":
            sends = choose_sends(settings.legacy_calls, turn, is_codex=info.is_codex, skip_turn=settings.skip_turn)
            return LegacyTurn(turn, settings, sends=sends)
        return CurrentTurn(
            turn,
            settings,
            can_inject=info.can_inject,
            needs_input=info.needs_input,
            native=self.offers_natively(turn),
            # All new items may become the input; then no injection would show whether the thread still exists.
            threads=self._threads if settings.kept_threads and not info.needs_input else None,
            now=trio.current_time(),
        )

    def turn_over(self, stream: TurnStream) -> None:
        """A turn is over, and its thread is released."""
        running = stream.running
        self.routes.unregister(running)
        # The next turn of the conversation may have taken the thread over already.
        if running.key is not None and self.routes.get(running.key) is None:
            if not self._threads.waits(running.key):
                self._tool_calls.forget(running.key)
            if self._tap is not None:
                self._tap.forget(running.key)
        del self._turns[stream]
        if running.begins_with is not None and self._closed is None:
            self._start_ahead(running.begins_with)
        if not self._turns:
            self.routes.forget_early()
            self.idle.set()

    def answer_open_calls(self, running: RunningTurn, key: str) -> None:
        """Answer the open tool calls of the thread `key`."""
        self._tool_calls.answer(key, running.output_of)
        self._flush()

    # Threads that are kept, or started ahead

    def keep_thread(self, running: RunningTurn, answer: AnswerDigest) -> None:
        """Keep a turn's thread after this answer. This happens immediately, because the conversation's next turn may
        start before this one is closed.
        """
        kept = running.kept(answer, trio.current_time() + KEEP_SECONDS) if self._closed is None else None
        if kept is not None:
            running.displaced = self._threads.keep(kept)

    def calls_to_release(self, threads: Iterable[KeptThread]) -> list[Call]:
        """The calls that release threads which are not kept any longer; their open tool calls are forgotten."""
        threads = list(threads)
        for thread in threads:
            self._tool_calls.forget(thread.id)
        return [call for thread in threads for call in thread.end()]

    async def _expire_threads(self) -> None:
        """Unload the threads whose conversation has not continued for too long."""
        while True:
            await trio.sleep(KEEP_SECONDS)
            self.calls.release(self.calls_to_release(self._threads.expire(trio.current_time())))

    def _start_ahead(self, digest: bytes) -> None:
        """Start a thread for the next conversation that begins like the one of a turn that is over."""
        params = self.warm.begin(digest)
        if params is not None:
            done = partial(self._started_ahead, digest)
            self.calls.send(Batch((Call("thread/start", params),), done, self._limits.rpc))

    def _started_ahead(self, digest: bytes, reply: Reply) -> None:
        self.calls.release(map(unsubscribe, self.warm.started(digest, reply, trio.current_time())))
        self.clock.due(self.warm.deadline())

    # Time

    def _check_time(self, now: float) -> float:
        """End what takes too long; the next deadline."""
        due = [stream.check(now) for stream in list(self._turns)]
        self.calls.release(map(unsubscribe, self.warm.expire(now)))
        parked = self._tool_calls.answer_late(now, {each.running for each in self._turns if not each.released})
        self._flush()
        return min(self.calls.check(now), parked, self.warm.deadline(), *due)

    # What the child sends

    def _answer(self, line: bytes, method: str, key: str | None) -> bytes | None:
        """The answer to a request of the child's; None where it is left open."""
        self._connection.counts.asked.add(method if method in ANSWERS else OTHER)
        if key is None or method != TOOL_CALL:
            return answer_request(line)
        turn = self.routes.get(key)
        if turn is None and self._threads.waits(key):
            self._tool_calls.add(key, line)
            return None
        if turn is None or not turn.parks_tool_calls:
            return answer_request(line)
        if (reply := answer_tool_call(line, turn.output_of)) is not None:
            return reply
        self.clock.due(self._tool_calls.park(key, line, turn, trio.current_time()))
        return None

    def _notification(self, method: str, params: dict[str, Any]) -> None:
        if method in self._notices:
            self._notices[method](params)
        self.routes.notify(key_of(params), method, params)

    def _failed(self, params: dict[str, Any]) -> None:
        if is_unconnected(params):
            self.unconnected.set()

    def _config_warning(self, params: dict[str, Any]) -> None:
        if warning := read_config_warning(params):
            self.config_warnings.append(warning)

    def _turn_ended(self, params: dict[str, Any]) -> None:
        # Outputs that are sent to a turn now would never be answered.
        self.calls.release(self.calls_to_release(self._threads.take_waiting(key_of(params))))

    # The pump

    async def _read(self, stderr_drained: trio.Event) -> None:
        size = READ_SIZE_LOGGED if self._tap is not None and self._tap.wants_lines else READ_SIZE
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self.process.stdout.receive_some(size):
                self._take(self._connection.feed, bytes(data))
            self._take(self._connection.finish)
        # Its last words on stderr may explain its end.
        with trio.move_on_after(LAST_WORDS):
            await stderr_drained.wait()

    def _take(self, take: Callable[..., None], *data: bytes) -> None:
        """Process what was read. Everything that this makes us send is written at once, at its end."""
        self._is_reading = True
        try:
            take(*data)
        finally:
            self._is_reading = False
        self._flush()

    def _notify(self, method: str) -> None:
        self._connection.notify(method)
        self._flush()

    def _flush(self) -> None:
        """Write what is queued: now, if the pipe has room for it."""
        if self._is_reading or self._unsent or not self._connection.outgoing:
            return
        chunk = self._queued()
        sent = self.process.write_at_once(chunk)
        if sent < len(chunk):
            self._unsent = chunk[sent:]
            self._has_unsent.set()

    async def _write(self) -> None:
        # When the pipe breaks, the reader sees the end of the child, and all calls and turns fail.
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                await self._has_unsent.wait()
                self._has_unsent = trio.Event()
                while self._unsent:
                    await self.process.stdin.send_all(self._unsent)
                    self._unsent = self._queued()

    def _queued(self) -> bytes:
        chunk = b"".join(self._connection.outgoing)
        self._connection.outgoing.clear()
        return chunk
