"""One running child: its pump, our calls, and the turns that run in it.

The reader takes what the pipe holds and hands it to `incoming`; it never waits for anybody. Each turn has one owner
task here, which starts it, and after the consumer has let go of it interrupts it if need be and frees what the child
keeps for it.
"""

from __future__ import annotations

import collections
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import trio

from bridge.appserver.account import Account
from bridge.appserver.affinity import KEEP_SECONDS, AnswerDigest, KeptThread, KeptThreads
from bridge.appserver.config_warning import METHOD as CONFIG_WARNING
from bridge.appserver.config_warning import ConfigWarning, read_config_warning
from bridge.appserver.counts import ChildCounts
from bridge.appserver.current import CurrentDecoder, CurrentTurn, interrupt, unsubscribe
from bridge.appserver.dialect import ChildInfo
from bridge.appserver.handshake import shake_hands
from bridge.appserver.incoming import Incoming
from bridge.appserver.lateness import overslept
from bridge.appserver.legacy import LegacyDecoder, LegacyTurn, choose_sends
from bridge.appserver.process import Process
from bridge.appserver.requests import TOOL_CALL, answer_request, answer_tool_call, known_request
from bridge.appserver.routes import Call, Resume, Routes, RunningTurn
from bridge.appserver.rpc import OVERLOADED, Peer, Reply, RpcError, key_of
from bridge.appserver.settings import ChildSettings
from bridge.appserver.stream import Limits, TurnStream
from bridge.appserver.tap import Tap
from bridge.errors import (
    LOG_IN,
    BackendCrashed,
    BackendProtocolError,
    BackendTimeout,
    BridgeError,
    InvalidRequest,
    Overloaded,
)
from bridge.exact_json import is_within_64_bits
from bridge.redact import harmless
from bridge.turn.turn import Turn

log = logging.getLogger("bridge.child")

GONE = "The Codex app-server went away during the request. Try again."

READ_SIZE = 1024 * 1024
"""All that the pipe can hold: with many streams, a larger read means fewer writes to each client."""
READ_SIZE_LOGGED = 256 * 1024
"""With the log, a read is in memory four times over; this much stays in the processor's cache."""
STDERR_KEPT = 64 * 1024
LAST_WORDS = 0.2
MAX_CALLS = 64
"""Calls in flight. Codex refuses or even forgets some when 200 come at once."""
MAX_RELEASES = 32
INTERRUPT_TIMEOUT = 5.0
"""Codex leaves the interruption of an idle thread unanswered."""
PARKED = 15.0
"""How long a native call waits for the end of the answer that it stands in."""
TOO_LONG = "exceeds the maximum length"
"""Part of Codex's message for a conversation of over a million characters, where it has no thread/inject_items."""
TIMEOUTS_ALLOWED = 3
"""Calls in a row without an answer after which the child counts as hung."""


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    params: Any
    on_result: Callable[[Any], None] | None
    """Runs in the reader, before anything that follows the reply is looked at."""


class Child:
    """A started process and the protocol with it. The supervisor runs `pump` and `handshake`."""

    def __init__(
        self,
        process: Process,
        settings: ChildSettings,
        *,
        dialect: Literal["auto", "current", "legacy"] = "auto",
        limits: Limits | None = None,
        tap: Tap | None = None,
        counts: ChildCounts | None = None,
    ) -> None:
        self.process = process
        self.info: ChildInfo | None = None
        self.account = Account(self.call)
        self.config_warnings: list[ConfigWarning] = []
        self.turns = 0
        self.ended_requests: list[str] = []
        """The requests whose turns ran when the child was closed."""
        self._running: dict[RunningTurn, None] = {}
        self._settings = settings
        self._threads = KeptThreads(settings.kept_threads)
        self._wanted = dialect
        self._limits = limits or Limits()
        self._tap = tap
        self._counts = counts or ChildCounts()
        self._routes = Routes()
        self._peer = Peer(on_notification=self._notification, answer=self._answer, tap=tap, counts=self._counts)
        self._incoming = Incoming(self._routes, self._peer, tap, self._counts)
        self._open_calls: dict[str, list[bytes]] = {}
        """The child's requests for outputs that have not come yet, by thread."""
        self._calls = trio.Semaphore(MAX_CALLS)
        self._releases = trio.Semaphore(MAX_RELEASES)
        self._unsent = trio.Event()
        self._stderr: collections.deque[bytes] = collections.deque()
        self._stderr_size = 0
        self._owners: trio.Nursery | None = None
        self._timeouts = 0
        self._closed: BridgeError | None = None
        self.over = trio.Event()
        """The child is of no use any more: gone, or hung."""
        self.hung = False
        self.idle = trio.Event()
        self.idle.set()

    def __repr__(self) -> str:
        return f"<Child pid={self.process.pid} turns={self.turns} {self._peer!r} {self._routes!r}>"

    # Life

    async def pump(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Move bytes until the child's output ends; by then every call and turn has failed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            drained = trio.Event()
            nursery.start_soon(self._drain_stderr, drained)
            nursery.start_soon(self.account.stay_informed)
            nursery.start_soon(self._forget_threads)
            async with trio.open_nursery() as owners:
                self._owners = owners
                task_status.started()
                try:
                    await self._read(drained)
                finally:
                    # Also when we are cancelled: from now on no turn can have an owner.
                    self.close(BackendCrashed(GONE))
                # All turns have failed by now; nothing is left to be freed in a child that is gone.
                owners.cancel_scope.cancel()
            nursery.cancel_scope.cancel()

    async def handshake(self) -> ChildInfo:
        """Introduce ourselves, learn what the child can do and which models it has, choose the dialect."""
        info = await shake_hands(self.call, self._notify, self._wanted, acts=self._settings.native_tools)
        self._incoming.decoder = CurrentDecoder() if info.dialect == "current" else LegacyDecoder()
        await self.account.begin(info)
        self.info = info
        if self._settings.drops_system_prompt("chat", info.dialect):
            log.warning(
                "system and developer messages of chat requests are left out (%s dialect); "
                "PROXY_IGNORE_CLIENT_SYSTEM_PROMPT=false passes them on",
                info.dialect,
            )
        if self.account.login == "missing":
            log.warning("Codex is not logged in, so only the mock models answer. %s", LOG_IN)
        if self._settings.tool_mode == "native" and not info.has_native_tools:
            log.warning("this app-server has no native tools (Codex has, from 0.145 on): they are offered in text")
        if self._tap is not None:
            about = {"version": info.version, "dialect": info.dialect, "is_codex": info.is_codex}
            self._tap.lifecycle("handshake", about)
        return info

    def close(self, error: BridgeError) -> None:
        """The child is gone or given up: all its calls and turns fail with `error`."""
        self.over.set()
        if self._closed is None:
            self._closed = error
            self.ended_requests = [turn.req_id for turn in self._running if turn.req_id and not turn.finished]
            self._peer.close(error)
            self._routes.fail_all(error)

    def offers_natively(self, turn: Turn) -> bool:
        """Whether the functions of a turn are offered natively; in text, integers of any size keep their digits."""
        wanted = self._settings.tool_mode == "native" if turn.native is None else turn.native
        if not wanted or self.info is None or not self.info.has_native_tools:
            return False
        return all(is_within_64_bits(tool.parameters) for tool in turn.functions)

    @property
    def config_fault(self) -> str | None:
        """Why the child ignores its config.toml; None where it does not. The text may contain paths."""
        return next((each.details or each.summary for each in self.config_warnings if each.is_fatal), None)

    @property
    def closed(self) -> bool:
        """Whether it takes no more calls."""
        return self._closed is not None

    def stderr_tail(self) -> str:
        """The last lines that the child wrote to its stderr."""
        return b"".join(self._stderr).decode("utf-8", "replace")

    # Calls and turns

    async def call(
        self,
        method: str,
        params: Any,
        *,
        timeout: float | None = None,
        req_id: str | None = None,
        on_result: Callable[[Any], None] | None = None,
        releasing: bool = False,
    ) -> Any:
        """One RPC. `on_result` runs in the reader, before anything that follows the reply is looked at.

        Raises RpcError, BackendTimeout, or what the child was closed with. An overloaded child is asked again, thrice.
        Calls that are `releasing` have slots of their own, because an interrupt may stay unanswered; nor does that mean
        that the child hangs.
        """
        request = _Request(method, params, on_result)
        for attempt in range(4):
            try:
                return await self._exchange([request], timeout or self._limits.rpc, req_id, releasing=releasing)
            except RpcError as error:
                if error.rpc_code != OVERLOADED or attempt == 3:
                    raise
            await trio.sleep(0.1 * 2**attempt * (1 + random.random()))
        raise AssertionError

    async def _forget_threads(self) -> None:
        """Let go of the threads that have waited too long for their conversation."""
        while True:
            await trio.sleep(KEEP_SECONDS)
            await self._forget(self._threads.expire(trio.current_time()))

    async def _forget(self, threads: Iterable[KeptThread]) -> None:
        for thread in threads:
            self._open_calls.pop(thread.id, None)
            stop = [] if thread.turn is None else [interrupt(thread.id, thread.turn)]
            await self._let_go([*stop, unsubscribe(thread.id)])

    def start(self, turn: Turn, req_id: str | None = None) -> TurnStream:
        """Begin a turn. Whatever goes wrong arrives as the stream's Finished event; raises only when it is closed."""
        if self._closed is not None:
            raise self._closed
        assert self.info is not None
        assert self._owners is not None
        settings = self._settings.narrowed(turn.narrowed)
        running: RunningTurn
        if self.info.dialect == "current":
            running = CurrentTurn(
                turn,
                settings,
                can_inject=self.info.can_inject,
                needs_input=self.info.needs_input,
                native=self.offers_natively(turn),
                # All new items may become the input; then no injection would show whether the thread still exists.
                threads=self._threads if settings.kept_threads and not self.info.needs_input else None,
                now=trio.current_time(),
            )
        else:
            sends = choose_sends(
                settings.legacy_calls,
                turn,
                is_codex=self.info.is_codex,
                skip_turn=settings.skip_turn,
            )
            running = LegacyTurn(turn, settings, sends=sends)
        running.req_id = req_id
        stream = TurnStream(running, self._limits)
        running.over = stream.released
        if running.resumes is not None:
            # At once: Codex may ask for an output, or the client may leave, before the owner's first step.
            self._routes.register(running.resumes, running)
            if self._tap is not None:
                self._tap.claim(running.resumes, req_id)
        self.turns += 1
        self._running[running] = None
        self.idle = trio.Event() if self.idle.is_set() else self.idle
        self._owners.start_soon(self._own, stream)
        return stream

    def keep_thread(self, running: RunningTurn, answer: AnswerDigest) -> None:
        """Keep a turn's thread after this answer. This happens immediately, because the conversation's next turn may
        start before this turn's owner task runs again.
        """
        kept = running.kept(answer, trio.current_time() + KEEP_SECONDS) if self._closed is None else None
        if kept is not None:
            running.displaced = self._threads.keep(kept)

    async def _own(self, stream: TurnStream) -> None:
        running = stream.running
        try:
            await self._begin(stream)
            await stream.released.wait()
            await self._release(running)
        finally:
            if not running.finished:
                # Cancelled with the child: whoever still listens must hear of an end.
                running.fail(self._closed or BackendCrashed(GONE))
                running.wake()
            running.let_go()
            self._routes.unregister(running)
            # The next turn of the conversation may have taken the thread over already.
            if running.key is not None and self._routes.get(running.key) is None:
                if not self._threads.waits(running.key):
                    self._open_calls.pop(running.key, None)
                if self._tap is not None:
                    self._tap.forget(running.key)
            self.turns -= 1
            del self._running[running]
            if not self.turns:
                self._routes.forget_early()
                self.idle.set()

    async def _begin(self, stream: TurnStream) -> None:
        running = stream.running
        flow = running.begin()
        unsent: list[Call] = []
        try:
            call = next(flow)
            while not stream.released.is_set():
                if isinstance(call, Resume):
                    self._answer_open_calls(running, call.key)
                    call = flow.send(None)
                    continue
                unsent.append(call)
                if not call.waits:
                    call = flow.send(None)
                    continue
                calls, unsent = unsent, []
                running.prompted = running.prompted or any(each.prompts for each in calls)
                try:
                    result = await self._call_for(running, calls)
                except RpcError as error:
                    # The turn may know another way.
                    call = flow.throw(error)
                else:
                    call = flow.send(result)
        except StopIteration:
            pass
        except BridgeError as error:
            running.fail(refusal(error))
            running.wake()
        except Exception:
            # Whatever it is, it is this turn's alone: the reader and the other turns go on.
            log.exception("turn %s could not be started", running.req_id)
            running.fail(BackendProtocolError("The turn could not be started; the bridge's log tells why."))
            running.wake()

    async def _release(self, running: RunningTurn) -> None:
        """Interrupt a turn that the child still works on, then give back what it holds."""
        if self._closed is not None:
            return
        if running.displaced is not None:
            await self._forget(running.displaced)
            return
        stop = None if running.ended else running.interrupt()
        await self._let_go([*([stop] if stop is not None else []), *running.end()], running.req_id)

    async def _let_go(self, calls: Sequence[Call], req_id: str | None = None) -> None:
        for call in calls:
            # Nobody is left to tell; the reply (or its absence) stands in the log.
            with suppress(BridgeError):
                await self.call(call.method, call.params, timeout=INTERRUPT_TIMEOUT, req_id=req_id, releasing=True)

    async def _call_for(self, running: RunningTurn, calls: Sequence[Call]) -> Any:
        """Make calls of a turn's flow; the result of the last one."""
        requests = [_Request(call.method, call.params, self._claim(call, running)) for call in calls]
        if len(requests) == 1:
            (request,) = requests
            return await self.call(request.method, request.params, req_id=running.req_id, on_result=request.on_result)
        # Not repeated when the child is overloaded: it may have accepted one of them.
        return await self._exchange(requests, self._limits.rpc, running.req_id)

    def _claim(self, call: Call, running: RunningTurn) -> Callable[[Any], None] | None:
        claim = call.claim
        if claim is None:
            return None
        return lambda result: self._routes.register(claim(result), running)

    async def _exchange(
        self, requests: Sequence[_Request], timeout: float, req_id: str | None, *, releasing: bool = False
    ) -> Any:
        """Send requests, one right after the other, in one slot; the result of the last one when all are answered.

        The first error ends the wait for the others.
        """
        try:
            async with self._releases if releasing else self._calls:
                replies = await self._replies(requests, timeout, req_id)
        except BackendTimeout:
            self._timeouts += not releasing
            if self._timeouts >= TIMEOUTS_ALLOWED:
                self.hung = True
                self.over.set()
            raise
        self._timeouts = 0
        for reply in replies.values():
            if reply.error is not None:
                raise reply.error
        return replies[requests[-1].method].result

    async def _replies(self, requests: Sequence[_Request], timeout: float, req_id: str | None) -> dict[str, Reply]:
        """The replies by method: those to all requests, or as many as came until one was an error."""
        if self._closed is not None:
            raise self._closed
        answered = trio.Event()
        replies: dict[str, Reply] = {}
        started = trio.current_time()

        def on_reply(request: _Request, reply: Reply) -> None:
            if reply.error is None and request.on_result is not None:
                try:
                    request.on_result(reply.result)
                except (KeyError, TypeError) as error:
                    fault = f"{request.method} was answered in an unknown form: {error!r}"
                    reply = Reply(error=BackendProtocolError(fault))
            self._counts.calls.observe(request.method, trio.current_time() - started)
            replies[request.method] = reply
            if reply.error is not None or len(replies) == len(requests):
                answered.set()

        sent = {
            request.method: self._peer.call(request.method, request.params, partial(on_reply, request), req_id)
            for request in requests
        }
        self._flush()
        deadline = trio.current_time() + timeout
        with trio.move_on_at(deadline):
            await answered.wait()
        if not answered.is_set() and overslept(deadline):
            with trio.move_on_after(timeout):
                await answered.wait()
        unanswered = [method for method in sent if method not in replies]
        for method in unanswered:
            self._peer.forget(sent[method])
        if not answered.is_set():
            for method in unanswered:
                self._counts.unanswered.add(method)
            raise BackendTimeout(f"The Codex app-server did not answer {unanswered[0]} within {timeout:g} s.")
        return replies

    def _notify(self, method: str) -> None:
        self._peer.notify(method)
        self._flush()

    # The pump

    async def _read(self, stderr_drained: trio.Event) -> None:
        try:
            size = READ_SIZE if self._tap is None else READ_SIZE_LOGGED
            while data := await self.process.stdout.receive_some(size):
                self._incoming.feed(bytes(data))
                self._flush()
            self._incoming.finish()
            self._flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        # Its last words may explain its end; they come by another pipe.
        with trio.move_on_after(LAST_WORDS):
            await stderr_drained.wait()

    def _answer(self, line: bytes, method: str, key: str | None) -> bytes | None:
        self._counts.asked.add(known_request(method))
        if key is None or method != TOOL_CALL:
            return answer_request(line)
        turn = self._routes.get(key)
        if turn is None and self._threads.waits(key):
            self._open_calls.setdefault(key, []).append(line)
            return None
        if turn is None or not turn.parks_tool_calls:
            return answer_request(line)
        if (reply := answer_tool_call(line, turn.output_of)) is not None:
            return reply
        self._open_calls.setdefault(key, []).append(line)
        assert self._owners is not None
        self._owners.start_soon(self._answer_later, turn, key, line)
        return None

    async def _answer_later(self, turn: RunningTurn, key: str, line: bytes) -> None:
        """Codex tells of a stream that broke after a call only once the call is answered; so it is, after a while."""
        assert turn.over is not None
        with trio.move_on_after(PARKED):
            await turn.over.wait()
        if not turn.over.is_set() and line in self._open_calls.get(key, ()):
            self._open_calls[key].remove(line)
            turn.give_up_thread()
            self._peer.reply(line, answer_request(line), key)
            self._flush()

    def _answer_open_calls(self, running: RunningTurn, key: str) -> None:
        """Answer what the thread's turn has asked for, as far as known; Codex asks for one output after the other."""
        for line in self._open_calls.pop(key, ()):
            if (reply := answer_tool_call(line, running.output_of)) is not None:
                self._peer.reply(line, reply, key)
            else:
                self._open_calls.setdefault(key, []).append(line)
        self._flush()

    def _notification(self, method: str, params: dict[str, Any]) -> None:
        self.account.notice(method, params)
        if method == CONFIG_WARNING and (warning := read_config_warning(params)):
            self.config_warnings.append(warning)
        elif method == "turn/completed" and (ended := self._threads.take_waiting(key_of(params))):
            # Outputs that are sent to it now would never be answered.
            assert self._owners is not None
            self._owners.start_soon(self._forget, ended)
        self._routes.notify(key_of(params), method, params)

    def _flush(self) -> None:
        if self._peer.outgoing:
            self._unsent.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._unsent.wait()
                self._unsent = trio.Event()
                chunk = b"".join(self._peer.outgoing)
                self._peer.outgoing.clear()
                await self.process.stdin.send_all(chunk)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The reader sees the end of the child and tells everybody.
            return

    async def _drain_stderr(self, drained: trio.Event) -> None:
        """Always read, or a chatty child would block; the last lines are kept for the log and `doctor`."""
        try:
            async for data in self.process.stderr:
                self._stderr.append(bytes(data))
                self._stderr_size += len(data)
                while self._stderr_size > STDERR_KEPT and len(self._stderr) > 1:
                    self._stderr_size -= len(self._stderr.popleft())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            drained.set()


def refusal(error: BridgeError) -> BridgeError:
    """Why a turn could not begin. Some of the child's errors mean something more specific than a protocol error."""
    if isinstance(error, RpcError) and error.rpc_code == OVERLOADED:
        return Overloaded(f"The Codex app-server is overloaded: {harmless(error.rpc_message)}", retry_after=2)
    if isinstance(error, RpcError) and TOO_LONG in error.rpc_message:
        return InvalidRequest(
            f"The conversation is too long for this version of Codex: {error.rpc_message}",
            code="context_length_exceeded",
        )
    return error
