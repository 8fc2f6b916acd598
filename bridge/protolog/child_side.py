"""What a log says about a child: its handshake, and of each thread the calls and what was said. Pure.

The records of a log become the tapes that `bridge.appserver.standin.playback` plays. Threads of several runs and of
several children may be mixed in it, and it may have been cut anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bridge import exact_json
from bridge.appserver.standin.tape import (
    BEGINS,
    ENDS,
    PARTS,
    PROMPTS,
    Answer,
    Dialect,
    Message,
    RecordedChild,
    Scene,
    Step,
    StepKind,
    Tape,
    is_refusal,
    key_in,
)
from bridge.redact import Redactor

_STANDIN = "-standin/"
_redactor = Redactor()


def read_child(records: Iterable[tuple[Path, dict[str, Any]]]) -> RecordedChild:
    """All that the records say about the child, or the children, of their runs."""
    reader = _ChildReader()
    for path, record in records:
        reader.add(path, record)
    return reader.finish()


@dataclass(slots=True)
class _SceneInProgress:
    method: str
    params: Message
    began: float
    label: str
    when: str
    order: int
    steps: list[tuple[int, Step]] = field(default_factory=list)
    """(order, step)."""
    calls: int = 0

    def scene(self) -> Scene:
        steps = tuple(step for _, step in sorted(self.steps, key=lambda entry: entry[0]))
        return Scene(self.method, self.params, steps, self.label, self.when, self.order)


@dataclass(slots=True)
class _TapeInProgress:
    dialect: Dialect
    run: str
    id: str | None = None
    scenes: list[_SceneInProgress] = field(default_factory=list)
    unanswered: int = 0
    """Calls that begin scenes and have no reply yet."""
    running: bool = False

    def add(
        self,
        order: int,
        mono: float,
        kind: StepKind,
        message: Message | None = None,
        *,
        scene: _SceneInProgress | None = None,
        method: str = "",
        call: int = 0,
        code: int = 0,
    ) -> None:
        """Something has happened in the last scene, or in this one."""
        scene = scene or self.scenes[-1]
        if scene.steps and scene.steps[-1][1].kind == "exit":
            # It was another child that ended.
            scene.steps.pop()
        step = Step(max(0.0, mono - scene.began), kind, {} if message is None else message, method, call, code)
        scene.steps.append((order, step))


@dataclass(frozen=True, slots=True)
class _Pending:
    """A call without its reply."""

    method: str
    req_id: str | None
    params: Message
    tape: _TapeInProgress | None = None
    scene: _SceneInProgress | None = None
    number: int = 0
    group: _Handshake | None = None


@dataclass(slots=True, eq=False)
class _Handshake:
    """What one child was asked that is about no thread."""

    initialize: Message | None = None
    refusal: str | None = None
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    greeting: list[Step] = field(default_factory=list)
    ids: set[Any] = field(default_factory=set)
    began: float = 0.0
    over: bool = False

    @property
    def is_standin(self) -> bool:
        return _STANDIN in str((self.initialize or {}).get("result"))


class _ChildReader:
    def __init__(self) -> None:
        self._order = 0
        self._tapes: list[_TapeInProgress] = []
        self._threads: dict[tuple[str, str], _TapeInProgress] = {}
        self._of_request: dict[tuple[str, str, str], _TapeInProgress] = {}
        self._pending: dict[tuple[str, Any], list[_Pending]] = {}
        self._asked: dict[tuple[str, Any], _TapeInProgress] = {}
        self._subscriptions: dict[tuple[str, str], _TapeInProgress] = {}
        self._active: dict[str, _TapeInProgress] = {}
        self._early: dict[tuple[str, str], list[tuple[int, float, Message]]] = {}
        self._handshakes: dict[str, list[_Handshake]] = {}
        self._methods: dict[str, None] = {}

    def add(self, path: Path, record: dict[str, Any]) -> None:
        """Take one record in."""
        self._order += 1
        # Transcripts have no times of day, and no runs: each file is one.
        is_transcript = not record["ts"]
        run = record.get("run") or (str(path) if is_transcript else "")
        kind, payload = record["kind"], record.get("payload")
        if kind == "backend_exit":
            self._exit(run, record, payload if isinstance(payload, dict) else {})
        elif not isinstance(payload, dict):
            return
        elif kind == "rpc_request":
            self._call(path, run, record, payload, is_transcript)
        elif kind in ("rpc_response", "rpc_error"):
            self._reply(run, record, payload)
        elif kind == "rpc_notification" and record.get("direction") == "in":
            self._notification(run, record, payload)
        elif kind == "server_request":
            tape = self._find(run, record, key_in(payload.get("params"))) or self._active.get(run)
            if tape is not None:
                self._asked[run, _plain(payload.get("id"))] = tape
                tape.add(self._order, record["mono"], "ask", payload)
        elif kind == "server_reply":
            tape = self._asked.get((run, _plain(payload.get("id"))))
            if tape is not None:
                tape.add(self._order, record["mono"], "answer", payload)

    def finish(self) -> RecordedChild:
        """Everything that was read."""
        groups = [group for run in self._handshakes.values() for group in run]
        # What a Codex says of itself goes before what the stand-in does, which plays the mock models beside it.
        groups.sort(key=lambda group: (group.initialize is None, group.is_standin))
        answers: dict[str, list[Answer]] = {}
        for group in groups:
            for method, given in group.answers.items():
                answers.setdefault(method, given)
        first = groups[0] if groups else _Handshake()
        return RecordedChild(
            tuple(Tape(tape.id, tape.dialect, tuple(scene.scene() for scene in tape.scenes)) for tape in self._tapes),
            first.initialize,
            tuple(first.greeting),
            next((group.refusal for group in groups if group.refusal), None),
            answers,
            tuple(self._methods),
        )

    # Calls

    def _call(self, path: Path, run: str, record: dict[str, Any], payload: Message, is_transcript: bool) -> None:
        method, mono, req_id = str(payload.get("method")), record["mono"], record["req_id"]
        given = payload.get("params")
        params: Message = given if isinstance(given, dict) else {}
        if is_transcript:
            # Logs have lost their secrets; what is compared with them has, too.
            params = exact_json.loads(_redactor.json(exact_json.dumps(params)))
        key = key_in(params)
        label = req_id or path.stem
        pending = _Pending(method, req_id, params)
        if method in BEGINS:
            tape = _TapeInProgress(BEGINS[method], run)
            self._tapes.append(tape)
            pending = self._open(tape, pending, mono, label, record["ts"])
        elif method in PARTS or method in PROMPTS:
            tape = self._find(run, record, key) or self._headless(run, key, params)
            pending = self._open(tape, pending, mono, label, record["ts"])
        else:
            found = self._find(run, record, key) or self._subscriptions.get((run, str(params.get("subscriptionId"))))
            if found is not None:
                scene = found.scenes[-1]
                scene.calls += 1
                found.add(self._order, mono, "call", method=method, call=scene.calls)
                pending = replace(pending, tape=found, scene=scene, number=scene.calls)
            elif key is None and "subscriptionId" not in params:
                pending = replace(pending, group=self._group(run, method, payload.get("id"), mono))
        if pending.tape is not None:
            self._active[run] = pending.tape
            if req_id is not None and key is not None:
                self._of_request[run, req_id, key] = pending.tape
        self._pending.setdefault((run, _plain(payload.get("id"))), []).append(pending)

    def _open(self, tape: _TapeInProgress, pending: _Pending, mono: float, label: str, when: str) -> _Pending:
        scene = _SceneInProgress(pending.method, pending.params, mono, label, when, self._order)
        tape.scenes.append(scene)
        tape.unanswered += 1
        tape.running = tape.running or pending.method in PROMPTS
        return replace(pending, tape=tape, scene=scene)

    def _headless(self, run: str, key: str | None, params: Message) -> _TapeInProgress:
        tape = _TapeInProgress("legacy" if "conversationId" in params else "current", run, key)
        self._tapes.append(tape)
        if key is not None:
            self._threads[run, key] = tape
        return tape

    def _group(self, run: str, method: str, rpc_id: Any, mono: float) -> _Handshake:
        groups = self._handshakes.setdefault(run, [])
        # Children that live side by side count their calls alike; each id is one call of each.
        found = next((group for group in groups if not group.over and _plain(rpc_id) not in group.ids), None)
        if method == "initialize" or found is None:
            found = _Handshake(began=mono)
            groups.append(found)
        found.ids.add(_plain(rpc_id))
        return found

    # What the child says

    def _reply(self, run: str, record: dict[str, Any], payload: Message) -> None:
        pending = self._take(run, record, payload)
        if pending is None:
            return
        reply = {name: value for name, value in payload.items() if name != "id"}
        refused = is_refusal(payload)
        if not (refused and f"unknown variant `{pending.method}`" in _message(payload)):
            self._methods[pending.method] = None
        elif pending.group is not None:
            pending.group.refusal = pending.group.refusal or _message(payload)
            return
        if pending.group is not None:
            if pending.method == "initialize":
                pending.group.initialize = pending.group.initialize or reply
            else:
                pending.group.answers.setdefault(pending.method, []).append(Answer(pending.params, reply))
        tape = pending.tape
        if tape is None:
            return
        tape.add(self._order, record["mono"], "reply", reply, scene=pending.scene, call=pending.number)
        self._active[run] = tape
        if not pending.number:
            tape.unanswered -= 1
            if refused and pending.method in PROMPTS:
                tape.running = False
        self._bind(run, record, tape, pending.method, payload.get("result"))

    def _bind(self, run: str, record: dict[str, Any], tape: _TapeInProgress, method: str, result: Any) -> None:
        """Remember what a reply has named."""
        if not isinstance(result, dict):
            return
        if isinstance(subscription := result.get("subscriptionId"), str):
            self._subscriptions[run, subscription] = tape
        key = key_in(result)
        if method not in BEGINS or key is None:
            return
        tape.id = key
        self._threads[run, key] = tape
        if record["req_id"] is not None:
            self._of_request[run, record["req_id"], key] = tape
        for order, mono, message in self._early.pop((run, key), ()):
            tape.add(order, mono, "notification", message)

    def _take(self, run: str, record: dict[str, Any], payload: Message) -> _Pending | None:
        """The call that a reply belongs to. Children count alike: the request and the method tell them apart."""
        waiting = self._pending.get((run, _plain(payload.get("id"))), [])
        method, req_id = record.get("method"), record["req_id"]
        alive = [
            call
            for call in waiting
            if method in (None, call.method) and not (call.group is not None and call.group.over)
        ]
        found = next((call for call in alive if call.req_id == req_id), alive[0] if alive else None)
        if found is not None:
            waiting.remove(found)
        return found

    def _notification(self, run: str, record: dict[str, Any], payload: Message) -> None:
        key, mono = key_in(payload.get("params")), record["mono"]
        tape = self._find(run, record, key)
        if tape is None and key is not None:
            self._early.setdefault((run, key), []).append((self._order, mono, payload))
            return
        tape = tape or self._active.get(run)
        if tape is None:
            groups = self._handshakes.get(run)
            if groups:
                groups[-1].greeting.append(Step(max(0.0, mono - groups[-1].began), "notification", payload))
            return
        tape.add(self._order, mono, "notification", payload)
        if payload.get("method") in ENDS:
            tape.running = False
        if key is not None:
            self._active[run] = tape

    def _exit(self, run: str, record: dict[str, Any], payload: Message) -> None:
        code = payload.get("code")
        for group in self._handshakes.get(run, ()):
            if not group.over:
                group.over = True
                break
        for tape in self._tapes:
            if tape.run == run and (tape.running or tape.unanswered):
                tape.add(self._order, record["mono"], "exit", code=code if isinstance(code, int) else 1)

    def _find(self, run: str, record: dict[str, Any], key: str | None) -> _TapeInProgress | None:
        if key is None:
            return None
        req_id = record["req_id"]
        found = self._of_request.get((run, req_id, key)) if req_id is not None else None
        return found or self._threads.get((run, key))


def _message(payload: Message) -> str:
    error = payload.get("error")
    return str(error.get("message")) if isinstance(error, dict) else ""


def _plain(value: Any) -> Any:
    """An id as a key."""
    return value if isinstance(value, int | str) else repr(value)
