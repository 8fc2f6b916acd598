"""What a log knows about a child: its handshake, and for each thread the calls and what the child sent. Pure.

The result is what `bridge.appserver.standin.replay` plays. Threads of several runs and of several children may be mixed
in a log, and it may have been cut anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bridge import exact_json
from bridge.appserver.dialect import BEGINS, ENDS, PARTS, PROMPTS, Dialect, dialect_of
from bridge.appserver.standin.messages import Message
from bridge.appserver.standin.recorded import (
    Answer,
    RecordedCall,
    RecordedChild,
    RecordedThread,
    Step,
    StepKind,
    is_refusal,
    key_in,
)
from bridge.exact_json import member, text_of
from bridge.log.transcript import hashable_id
from bridge.redact import Redactor

_redactor = Redactor()


def read_child(records: Iterable[tuple[Path, dict[str, Any]]]) -> RecordedChild:
    """Everything that the records contain about the child, or the children, of their runs."""
    methods: dict[str, None] = {}
    runs: dict[str, _Run] = {}
    for order, (path, record) in enumerate(records, 1):
        # Transcripts have no times of day and no runs: each file is a run.
        name = record.get("run") or ("" if record["ts"] else str(path))
        runs.setdefault(name, _Run(methods)).add(order, path, record)
    threads = [thread for run in runs.values() for thread in run.threads]
    threads.sort(key=lambda each: each.calls[0].call.order)
    handshakes = [handshake for run in runs.values() for handshake in run.handshakes]
    # The handshake of a Codex goes before that of the stand-in, which plays the mock models beside it.
    handshakes.sort(
        key=lambda each: (each.initialize is None, "-standin/" in text_of(member(each.initialize, "result")))
    )
    answers: dict[str, list[Answer]] = {}
    for handshake in handshakes:
        answers = handshake.answers | answers
    first = handshakes[0] if handshakes else _Handshake()
    return RecordedChild(
        tuple(RecordedThread(each.id, each.dialect, tuple(call.recorded() for call in each.calls)) for each in threads),
        first.initialize,
        tuple(first.greeting),
        next((each.refusal for each in handshakes if each.refusal), None),
        answers,
        tuple(methods),
    )


@dataclass(slots=True)
class _Call:
    """A call that begins a `RecordedCall`, and what has followed it."""

    call: RecordedCall
    began: float
    steps: list[tuple[int, Step]] = field(default_factory=list)
    """(order, step)."""
    others: int = 0
    """How many other calls have followed."""

    def add(
        self, order: int, mono: float, kind: StepKind, message: Message | None = None, *,
        method: str = "", number: int = 0, code: int = 0,
    ) -> None:  # fmt: skip
        if self.steps and self.steps[-1][1].kind == "exit":
            # It was another child that ended.
            self.steps.pop()
        self.steps.append((order, Step(max(0.0, mono - self.began), kind, message or {}, method, number, code)))

    def recorded(self) -> RecordedCall:
        return replace(self.call, steps=tuple(step for _, step in sorted(self.steps, key=lambda entry: entry[0])))


@dataclass(slots=True)
class _Thread:
    dialect: Dialect
    id: str | None = None
    calls: list[_Call] = field(default_factory=list)
    unanswered: int = 0
    """Calls in `calls` that have no reply yet."""
    running: bool = False


@dataclass(slots=True, eq=False)
class _Handshake:
    """The calls to one child that are about no thread."""

    initialize: Message | None = None
    refusal: str | None = None
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    greeting: list[Step] = field(default_factory=list)
    ids: set[Any] = field(default_factory=set)
    began: float = 0.0
    over: bool = False


@dataclass(frozen=True, slots=True)
class _Pending:
    """A call without its reply: one of a thread (its `number` among the other calls of `call`), or of a handshake."""

    method: str
    req_id: str | None
    params: Message
    thread: _Thread | None
    call: _Call | None
    number: int
    handshake: _Handshake | None


@dataclass(slots=True)
class _Run:
    """One run of a bridge. Its children may run side by side, and number their calls alike."""

    methods: dict[str, None]
    """The known methods of all runs, in the order of the first replies."""
    threads: list[_Thread] = field(default_factory=list)
    handshakes: list[_Handshake] = field(default_factory=list)
    _by_key: dict[str, _Thread] = field(default_factory=dict)
    _by_request: dict[tuple[str, str], _Thread] = field(default_factory=dict)
    _by_subscription: dict[str, _Thread] = field(default_factory=dict)
    _by_question: dict[Any, _Thread] = field(default_factory=dict)
    """The threads of the child's own requests, by their ids."""
    _active: _Thread | None = None
    """The thread of the last message."""
    _pending: dict[Any, list[_Pending]] = field(default_factory=dict)
    _early: dict[str, list[tuple[int, float, Message]]] = field(default_factory=dict)
    """Notifications that came before the reply that names their thread."""

    def add(self, order: int, path: Path, record: dict[str, Any]) -> None:
        kind, mono, payload = record["kind"], record["mono"], record.get("payload")
        if kind == "backend_exit":
            self._exit(order, mono, member(payload, "code"))
        elif not isinstance(payload, dict):
            return
        elif kind == "rpc_request":
            self._call(order, path, record, payload)
        elif kind in ("rpc_response", "rpc_error"):
            self._reply(order, record, payload)
        elif kind == "rpc_notification" and record.get("direction") == "in":
            self._notification(order, record, payload)
        elif kind == "server_request":
            thread = self._find(record["req_id"], key_in(payload.get("params"))) or self._active
            if thread is not None:
                self._by_question[hashable_id(payload.get("id"))] = thread
                thread.calls[-1].add(order, mono, "ask", payload)
        elif kind == "server_reply":
            thread = self._by_question.get(hashable_id(payload.get("id")))
            if thread is not None:
                thread.calls[-1].add(order, mono, "answer", payload)

    def _call(self, order: int, path: Path, record: dict[str, Any], payload: Message) -> None:
        method, req_id, mono = str(payload.get("method")), record["req_id"], record["mono"]
        params: Message = payload["params"] if isinstance(payload.get("params"), dict) else {}
        if not record["ts"]:
            # The secrets of a log were removed; those of a transcript must be too, because both are compared.
            params = exact_json.loads(_redactor.json(exact_json.dumps(params)))
        key, rpc_id = key_in(params), hashable_id(payload.get("id"))
        thread = None if method in BEGINS else self._find(req_id, key)
        call, number, handshake = None, 0, None
        if method in BEGINS or method in PARTS or method in PROMPTS:
            if thread is None:
                thread = _Thread(dialect_of(method))
                self.threads.append(thread)
                if key is not None and method not in BEGINS:  # the log was cut before its beginning
                    thread.id, self._by_key[key] = key, thread
            call = _Call(RecordedCall(method, params, (), req_id or path.stem, record["ts"], order), mono)
            thread.calls.append(call)
            thread.unanswered += 1
            thread.running = thread.running or method in PROMPTS
        elif thread := thread or self._by_subscription.get(str(params.get("subscriptionId"))):
            call = thread.calls[-1]
            call.others += 1
            number = call.others
            call.add(order, mono, "call", method=method, number=number)
        elif key is None and "subscriptionId" not in params:
            handshake = self._handshake(method, rpc_id, mono)
        if thread is not None:
            self._active = thread
            if req_id is not None and key is not None:
                self._by_request[req_id, key] = thread
        self._pending.setdefault(rpc_id, []).append(_Pending(method, req_id, params, thread, call, number, handshake))

    def _handshake(self, method: str, rpc_id: Any, mono: float) -> _Handshake:
        # Children that run side by side number their calls alike: each id is one call of each.
        found = next((each for each in self.handshakes if not each.over and rpc_id not in each.ids), None)
        if method == "initialize" or found is None:
            found = _Handshake(began=mono)
            self.handshakes.append(found)
        found.ids.add(rpc_id)
        return found

    def _reply(self, order: int, record: dict[str, Any], payload: Message) -> None:
        pending = self._pending_call(record, payload)
        if pending is None:
            return
        method, thread, handshake = pending.method, pending.thread, pending.handshake
        reply = {name: value for name, value in payload.items() if name != "id"}
        message = text_of(member(payload, "error", "message"))
        if not (is_refusal(payload) and f"unknown variant `{method}`" in message):
            self.methods.setdefault(method)
        elif handshake is not None:
            handshake.refusal = handshake.refusal or message
            return
        if handshake is not None and method == "initialize":
            handshake.initialize = handshake.initialize or reply
        elif handshake is not None:
            handshake.answers.setdefault(method, []).append(Answer(pending.params, reply))
        if thread is None or pending.call is None:
            return
        pending.call.add(order, record["mono"], "reply", reply, number=pending.number)
        self._active = thread
        if not pending.number:
            thread.unanswered -= 1
            if is_refusal(payload) and method in PROMPTS:
                thread.running = False
        if isinstance(subscription := member(payload, "result", "subscriptionId"), str):
            self._by_subscription[subscription] = thread
        key = key_in(payload.get("result"))
        if method in BEGINS and key is not None:
            thread.id, self._by_key[key] = key, thread
            if record["req_id"] is not None:
                self._by_request[record["req_id"], key] = thread
            for early, mono, notification in self._early.pop(key, ()):
                thread.calls[-1].add(early, mono, "notification", notification)

    def _pending_call(self, record: dict[str, Any], payload: Message) -> _Pending | None:
        """The call that a reply belongs to. Children number calls alike: the request and the method tell them apart."""
        waiting = self._pending.get(hashable_id(payload.get("id")), [])
        method, req_id = record.get("method"), record["req_id"]
        alive = [
            call
            for call in waiting
            if method in (None, call.method) and not (call.handshake is not None and call.handshake.over)
        ]
        found = next((call for call in alive if call.req_id == req_id), alive[0] if alive else None)
        if found is not None:
            waiting.remove(found)
        return found

    def _notification(self, order: int, record: dict[str, Any], payload: Message) -> None:
        key, mono = key_in(payload.get("params")), record["mono"]
        thread = self._find(record["req_id"], key)
        if thread is None and key is not None:
            self._early.setdefault(key, []).append((order, mono, payload))
        elif thread := thread or self._active:
            thread.calls[-1].add(order, mono, "notification", payload)
            if payload.get("method") in ENDS:
                thread.running = False
            if key is not None:
                self._active = thread
        elif self.handshakes:
            last = self.handshakes[-1]
            last.greeting.append(Step(max(0.0, mono - last.began), "notification", payload))

    def _exit(self, order: int, mono: float, code: Any) -> None:
        for handshake in self.handshakes:
            if not handshake.over:
                handshake.over = True
                break
        for thread in self.threads:
            if thread.running or thread.unanswered:
                thread.calls[-1].add(order, mono, "exit", code=code if isinstance(code, int) else 1)

    def _find(self, req_id: str | None, key: str | None) -> _Thread | None:
        """A thread by its id. Two children may use the same id: the request tells which one is meant."""
        found = self._by_request.get((req_id, key)) if req_id is not None and key is not None else None
        return found or (self._by_key.get(key) if key is not None else None)
