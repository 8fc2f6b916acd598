"""TurnEvents as a Responses event stream, and as a response object, which also repeats the request.

The order is the API's: created, in_progress, then for each item added, its parts and deltas, done; one terminal event.
A call is cut off, and incomplete, if anything but its arguments follows its beginning. `sequence_number` counts from 0
without gaps. A delta costs one bytes template and one `orjson.dumps`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orjson import dumps

from bridge import exact_json
from bridge.core.events import CANCELLED, Finished, Restarted, TurnEvent, Usage
from bridge.core.items import OutputFormat
from bridge.core.turn import Turn
from bridge.errors import BridgeError
from bridge.protocols.client import AnswerContext, ApiDescription, ClientProtocol, Json, NewId
from bridge.protocols.dropped import dropped_fields
from bridge.protocols.reading import conversation_id, parse_request
from bridge.protocols.responses.item_encoder import TEXT_DELTA, DeltaFrame, ItemEncoder
from bridge.protocols.sse import interrupted, join_events


class ResponsesEncoder(ItemEncoder):
    """One response. If not `streaming`, no events are written: there is only a `body`, and the upstream may restart."""

    def __init__(
        self,
        echo: Json,
        new_id: NewId,
        *,
        created_at: int,
        streaming: bool = True,
        now: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(new_id, streaming=streaming)
        self.id = new_id("resp")
        self.created_at = created_at
        self.final: Json | None = None
        """The response object at its end."""
        self._ended = ""
        """The kind of the last event."""
        self._echo = echo
        self._now = now or (lambda: created_at)
        self._sequence = 0

    def __repr__(self) -> str:
        return f"<ResponsesEncoder {self.id} items={len(self.output)} finished={self.finished}>"

    def begin(self) -> bytes:
        response = self.snapshot()
        self._emit("response.created", response=response)
        self._emit("response.in_progress", response=response)
        return self.feed([])

    def feed(self, events: list[TurnEvent]) -> bytes:
        self._encode(events)
        out, self._out = self._out, []
        return join_events(out)

    def body(self) -> bytes:
        assert self.final is not None
        return exact_json.dumps(self.final)

    def snapshot(self) -> Json:
        """The response object so far."""
        return self._response("in_progress")

    @property
    def text(self) -> str:
        """The text of all finished messages."""
        messages = [item["content"] for item in self.output if item["type"] == "message"]
        return "".join(part["text"] for content in messages for part in content)

    def _delta_frame(self, kind: str, where: Json) -> DeltaFrame:
        # `sequence_number` is the only other member that changes from one delta to the next.
        name, members = kind.encode(), dumps(where)[1:-1]
        head = b'event: %b\ndata: {"type":"%b",' % (name, name)
        if kind == TEXT_DELTA:
            return head + members + b',"sequence_number":', b',"delta":'
        return head + b'"sequence_number":', b"," + members + b',"delta":'

    def _write_deltas(self, frame: DeltaFrame, pieces: list[str]) -> None:
        if not self._streaming:
            return
        out, number = self._out, self._sequence
        head, middle = frame
        for piece in pieces:
            out.append(b"%b%d%b%b}\n\n" % (head, number, middle, dumps(piece)))
            number += 1
        self._sequence = number

    def _restart(self, event: Restarted) -> None:
        if self._streaming:
            super()._restart(event)
        else:
            self.output.clear()
            self._open = None
            self.visible = False

    def _finish(self, end: Finished) -> None:
        self._close_open("completed" if end.outcome == "completed" else "incomplete")
        self.finished = True
        # A cancelled response has a status but no event of its own in the API.
        kind, status, members = "incomplete", "incomplete", Json()
        if end.outcome == "completed":
            kind = status = "completed"
            members["completed_at"] = int(self._now())
        elif end.outcome == "cancelled" and end.reason == CANCELLED:
            status = "cancelled"
        elif end.outcome == "incomplete":
            members["incomplete_details"] = {"reason": end.reason or "unknown"}
        else:
            kind = status = "failed"
            self.failure = end.error or interrupted()
            members["error"] = error_object(self.failure)
        self.final, self._ended = self._response(status, **members), kind
        self._emit(f"response.{kind}", response=self.final)

    def _response(self, status: str, **members: Any) -> Json:
        usage = usage_object(self.usage) if status != "in_progress" and self.usage else None
        about = {"id": self.id, "created_at": self.created_at, "status": status}
        return response_object(self._echo, **about, output=list(self.output), usage=usage, **members)

    def without_storage(self, out: bytes) -> bytes:
        """`out`, which ends with the end of the response, for one that could not be stored after all."""
        assert self.final is not None
        old = self._end()
        self.final = {**self.final, "store": False}
        return out.removesuffix(old) + self._end() if self._streaming else out

    def _end(self) -> bytes:
        """The last event."""
        return b"".join(_frame(f"response.{self._ended}", self._sequence - 1, response=self.final))

    def _emit(self, kind: str, **members: Any) -> None:
        if not self._streaming:
            return
        # Not joined here: a text may be large, and would be copied twice.
        self._out += _frame(kind, self._sequence, **members)
        self._sequence += 1


def _frame(kind: str, number: int, **members: Any) -> tuple[bytes, bytes, bytes]:
    payload = {"type": kind, "sequence_number": number, **members}
    return b"event: %b\ndata: " % kind.encode(), exact_json.dumps(payload), b"\n\n"


# The response object: what was requested, and the result.

_STREAM_ERROR_CODES = frozenset({"server_error", "rate_limit_exceeded", "invalid_prompt"})
"""Error codes in clients' types of a failed response."""

NEVER_FILLED = (
    "access_programs",
    "image",
    "input_transformations",
    "moderation",
    "prompt_cache_diagnostics",
    "prompt_cache_options",
    "prompt_cache_retention",
    "tool_usage",
)
"""Members of the API's type that have no value here."""

_USUAL: Json = {
    "id": None,
    "object": "response",
    "created_at": None,
    "status": "in_progress",
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "model": None,
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}},
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "previous_response_id": None,
    "conversation": None,
    "prompt": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "background": False,
    "top_logprobs": 0,
    "truncation": "disabled",
    "user": None,
    **dict.fromkeys(NEVER_FILLED),
    "output": [],
    "usage": None,
}
"""A response to a request without options: every member, in order.

A member is null only if the Open Responses specification allows it, which is stricter than OpenAI's client types: the
sampling parameters are numbers and the service tier is a string even if the request has none.
"""


def echo_of(data: Mapping[str, Any], turn: Turn, *, store: bool = False) -> Json:
    """The members of a response that repeat the body `data`, which has either shape. `store`: it will be stored.

    Only those that differ from the defaults: a stream keeps them in memory while it runs.
    """
    metadata = data.get("metadata")
    conversation = conversation_id(data)
    repeated = ("previous_response_id", "prompt_cache_key", "safety_identifier", "user")
    verbosity = {} if turn.verbosity is None else {"verbosity": turn.verbosity}
    said = {
        "model": turn.requested_model,
        "instructions": turn.instructions,
        "tools": [_tool(tool) for tool in data.get("tools") or ()],
        "tool_choice": _choice(data.get("tool_choice")),
        "parallel_tool_calls": turn.parallel,
        "reasoning": {"effort": turn.effort, "summary": None if turn.summary == "none" else turn.summary},
        "text": {"format": _format(turn.output_format), **verbosity},
        "temperature": turn.temperature,
        "top_p": turn.top_p,
        "presence_penalty": _penalty(data.get("presence_penalty")),
        "frequency_penalty": _penalty(data.get("frequency_penalty")),
        "max_output_tokens": turn.max_output_tokens,
        "metadata": metadata if isinstance(metadata, dict) else {},
        "conversation": None if conversation is None else {"id": conversation},
        "service_tier": turn.service_tier,
        "store": store,
        "background": data.get("background") is True,
        **{name: data[name] for name in repeated if isinstance(data.get(name), str)},
    }
    # None means that the request has no such option: the default applies, which is not always null.
    return {name: value for name, value in said.items() if value is not None and value != _USUAL[name]}


def response_object(echo: Json, **members: Any) -> Json:
    """A response in one state. Every member is always present."""
    return {**_USUAL, **echo, **members}


def usage_object(usage: Usage) -> Json:
    """Usage as the Responses API writes it."""
    return {
        **({"estimated": True} if usage.estimated else {}),
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }


def error_object(error: BridgeError) -> Json:
    """The `error` member of a failed response: a code that clients know, and ours."""
    if error.code in _STREAM_ERROR_CODES:
        code = error.code
    elif error.http_status == 429:
        code = "rate_limit_exceeded"
    else:
        code = "invalid_prompt" if error.http_status in (400, 413) else "server_error"
    return {"code": code, "message": error.message, "bridge_code": error.code}


def _tool(data: Mapping[str, Any]) -> Json:
    """A tool in the Responses form, all members of a function present."""
    if data.get("type", "function") != "function":
        tool = _flat(data, "custom")
        form = tool.get("format")
        return tool | ({"format": _flat(form, "grammar")} if isinstance(form, dict) else {})
    nested = data.get("function")
    given = nested if isinstance(nested, dict) else data
    parameters = given.get("parameters")
    return {
        "type": "function",
        "name": given.get("name"),
        "description": given.get("description"),
        # A request may have the schema `true`; clients' types have only objects and null.
        "parameters": parameters if isinstance(parameters, dict) else None,
        "strict": given.get("strict") is True,
    }


def _choice(choice: Any) -> Any:
    """A choice in the Responses form, where nothing is nested."""
    if not isinstance(choice, dict):
        return choice or "auto"
    flat = _flat(_flat(_flat(choice, "function"), "custom"), "allowed_tools")
    if flat.get("type") == "allowed_tools":
        tools = flat.get("tools")
        chosen = [_choice(tool) for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
        return {"mode": "auto"} | flat | {"tools": chosen}
    return flat


def _flat(data: Mapping[str, Any], member: str) -> Json:
    """An object with one member replaced by the members of that member."""
    nested = data.get(member)
    if not isinstance(nested, dict):
        return dict(data)
    return {name: value for name, value in data.items() if name != member} | nested


def _format(output: OutputFormat | None) -> Json:
    if output is None:
        return {"type": "text"}
    if output.type != "json_schema":
        return {"type": output.type}
    return {
        "type": "json_schema",
        "name": output.name,
        "description": output.description,
        "schema": output.schema,
        "strict": output.strict,
    }


def _penalty(value: Any) -> float | None:
    """A penalty in the API's range. Nothing else reads or checks it."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and -2 <= value <= 2 else None


def make_encoder(turn: Turn, data: Json, context: AnswerContext) -> ResponsesEncoder:
    """The encoder of the answer to a body."""
    echo = echo_of(data, turn, store=context.stored)
    return ResponsesEncoder(
        echo, context.new_id, created_at=int(context.now()), streaming=bool(turn.stream), now=context.now
    )


def _parse(data: Json, context: Sequence[Json]) -> Turn:
    # A chat body may ask for several choices, but a response is one answer.
    turn = parse_request(data, "responses", context)
    return turn if turn.n is None else replace(turn, n=None)


RESPONSES = ClientProtocol(
    "responses",
    "/v1/responses",
    parse=_parse,
    make_encoder=make_encoder,
    dropped_fields=lambda data, turn, takes: dropped_fields(data, turn, "responses", takes),
    api=ApiDescription(
        tag="Responses",
        about="The Responses API: answers, stored and continued.",
        description="A response, streamed or not, stored unless `store` is false. A WebSocket at the same path accepts "
        "`response.create` messages.",
        operation="createResponse",
        summary="Create a response",
        answer="Response",
        stream="Events `response.created`, `response.in_progress`, then for each item `response.output_item.added`, "
        "its parts and deltas, `response.output_item.done`, and exactly one of `response.completed`, "
        "`response.incomplete` and `response.failed`. The data of each is one line of JSON whose `type` is the name of "
        "the event and whose `sequence_number` counts from 0. Comments keep the connection alive.",
    ),
    keeps_answers=True,
)
