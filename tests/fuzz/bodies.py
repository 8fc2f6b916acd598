"""Bodies of requests: each is refused with an error of ours, or becomes a turn that every backend can be asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from fuzz.answers import RULES
from fuzz.cutting import choice
from protocols.cases import counter

from bridge import exact_json
from bridge.appserver.current import CurrentTurn
from bridge.appserver.legacy import LegacyTurn, choose_sends
from bridge.appserver.turn import Call, ChildSettings, RunningTurn
from bridge.core.backend import NOTHING_MORE
from bridge.core.models import ModelChoice
from bridge.core.turn import Turn
from bridge.errors import BridgeError, InvalidRequest
from bridge.protocols.cap.request import parse_assist, parse_service_request
from bridge.protocols.chat.presets import PRESETS
from bridge.protocols.client import ClientProtocol
from bridge.protocols.dropped import dropped_fields
from bridge.protocols.gemini.protocol import GEMINI
from bridge.protocols.messages.protocol import MESSAGES
from bridge.protocols.reading import parse_json, parse_request
from bridge.protocols.responses.build import build_stored_items
from bridge.protocols.responses.encoder import echo_of
from bridge.upstream.backend import ChatApi, MessagesApi, PlainResponsesApi, ResponsesApi

SETTINGS = ChildSettings()
APIS = (MessagesApi(), ResponsesApi(), PlainResponsesApi(), ChatApi(), ChatApi(PRESETS["gemini"]))
RESULT = {"thread": {"id": "t"}, "conversationId": "t", "turn": {"id": "turn"}}
"""A child's answer to any of a turn's calls."""


def resolve(name: str) -> ModelChoice:
    """Every name is a model's, but the empty one."""
    if not name:
        raise InvalidRequest("There is no model without a name.")
    return ModelChoice(name, name)


def read_responses(data: bytes) -> None:
    """A body on /v1/responses."""
    _read(data[1:], "responses", choice(data))


def read_chat(data: bytes) -> None:
    """A body on /v1/chat/completions."""
    _read(data[1:], "chat", choice(data))


def read_messages(data: bytes) -> None:
    """A body on /v1/messages."""
    _read_for(MESSAGES, data, {})


def read_gemini(data: bytes) -> None:
    """A body on /v1beta/models/m:generateContent."""
    _read_for(GEMINI, data, {"model": "m", "stream": False})


def _read_for(protocol: ClientProtocol, data: bytes, members: Mapping[str, Any]) -> None:
    """A body with the members that its path stands for."""
    with suppress(BridgeError):
        body = {**parse_json(data[1:]), **members}
        turn = protocol.parse(body, ())
        turn = turn.for_model(resolve(turn.model))
        ",".join(protocol.dropped_fields(body, turn, NOTHING_MORE)).encode("latin-1")
        exact_json.dumps(build_stored_items(turn.items, counter()))
        _ask(turn, choice(data))


def read_cap(data: bytes) -> None:
    """A body on /v1/assist."""
    with suppress(BridgeError):
        body = parse_json(data[1:])
        request = parse_service_request(body)
        assist = parse_assist(request, resolve, RULES, data=body)
        exact_json.dumps([request.compute_hash(), assist.ignored])
        ", ".join(assist.ignored).encode("ascii")
        _ask(assist.turn, choice(data))


def _read(body: bytes, path: str, number: int) -> None:
    with suppress(BridgeError):
        data = parse_json(body)
        exact_json.dumps(data)  # the log
        turn = parse_request(data, path)
        turn = turn.for_model(resolve(turn.model))
        ",".join(dropped_fields(data, turn, path)).encode("latin-1")
        exact_json.dumps(build_stored_items(turn.items, counter()))
        if path == "responses":
            exact_json.dumps(echo_of(data, turn, store=True))
        _ask(turn, number)


def _ask(turn: Turn, number: int) -> None:
    """The turn in the words of one of those who could answer it."""
    sends = choose_sends("auto", turn, is_codex=bool(number & 1), skip_turn=False)
    children: list[Callable[[], RunningTurn]] = [
        lambda: CurrentTurn(turn, SETTINGS, can_inject=True),
        lambda: CurrentTurn(turn, SETTINGS, can_inject=True, native=True),
        lambda: CurrentTurn(turn, SETTINGS, can_inject=False),
        lambda: LegacyTurn(turn, SETTINGS, sends=sends),
    ]
    asked = number // 2 % (len(children) + len(APIS))
    if asked < len(children):
        _begin(children[asked]())
        return
    api = APIS[asked - len(children)]
    api.buffer(turn)
    exact_json.dumps([api.build(turn, "session"), api.drops(turn)])


def _begin(running: RunningTurn) -> None:
    flow = running.begin()
    result: Any = None
    with suppress(StopIteration):
        while True:
            call = flow.send(result)
            if isinstance(call, Call):
                exact_json.dumps(call.params)
            result = RESULT
