"""The laws of the codecs: an answer that is encoded decodes to itself, a turn that is built parses as itself.

A protocol cannot carry everything. What it loses is named in its normaliser, and nothing else may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import orjson
from hypothesis import assume, given
from hypothesis import strategies as st
from property.test_encoders_properties import answers, successes
from protocols.cases import chat_encoder, choices_encoder, counter, encode, messages_encoder, responses_encoder

from bridge import exact_json
from bridge.core.collect import OpenCall, ReasoningOutput, Result, TextOutput, collect
from bridge.core.events import CANCELLED, Choice, Finished, ReasoningDelta, ToolCall, TurnEvent, Usage, WebSearch
from bridge.core.items import (
    FAILED,
    Document,
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Item,
    Message,
    OutputFormat,
    Part,
    RawItem,
    RawTool,
    Text,
    ToolChoice,
    WebSearchOptions,
)
from bridge.core.turn import Turn
from bridge.protocols.chat.build import build_body
from bridge.protocols.chat.decoder import ChatBuffer, ChoicesBuffer
from bridge.protocols.chat.presets import Preset
from bridge.protocols.chat.request import FORM, parse_chat
from bridge.protocols.items import read_items
from bridge.protocols.messages.build import build_body as build_message
from bridge.protocols.messages.decoder import MessagesBuffer
from bridge.protocols.messages.encoder import message_input
from bridge.protocols.messages.models import client_block, pack_thought
from bridge.protocols.messages.request import FIELD_NAMES, parse_messages
from bridge.protocols.responses.build import build_request, build_stored_items
from bridge.protocols.responses.decoder import ResponsesBuffer
from bridge.protocols.responses.request import parse_responses
from bridge.protocols.sse import SseReader, incomplete_message
from bridge.protocols.upstream import UpstreamBuffer, is_json
from bridge.protocols.wire import WireEncoder
from bridge.tools.payload import arguments_of, arguments_or_none, function_of

# Answers

INTERRUPTED = "The turn was interrupted."
EMPTY = "The model ended its turn without an answer."


@dataclass(frozen=True)
class Answered:
    """An answer without the ids of its items, and without how its texts were cut."""

    outputs: tuple[Any, ...]
    usage: Usage | None
    end: tuple[str, str | None]
    """The outcome, and its reason or the error's message."""


def answered(result: Result, usage: Callable[[Usage], Usage] = lambda usage: usage) -> Answered:
    """The comparable form of a result. Empty texts, and blank arguments that were cut off, say nothing."""
    assert result.end is not None
    outputs = [form for output in result.outputs if (form := comparable(output)) is not None]
    end = result.end
    reason = end.error.message if end.error is not None else end.reason
    return Answered(tuple(outputs), usage(result.usage) if result.usage else None, (end.outcome, reason))


def comparable(output: Any) -> Any:
    if isinstance(output, TextOutput):
        return ("text", output.text) if output.text else None
    if isinstance(output, ReasoningOutput):
        return "reasoning", tuple(output.summary_parts()), tuple(output.content_parts()), output.encrypted
    if isinstance(output, WebSearch):
        return "search", dict(output.action)
    call = output.so_far if isinstance(output, OpenCall) else output
    arguments = call.arguments if isinstance(output, ToolCall) or call.arguments.strip() else ""
    return "call", type(output), call.call_id, (call.namespace, call.name), arguments


def decoded(buffer: UpstreamBuffer, events: Iterable[bytes]) -> Result:
    """What a decoder makes of a whole stream, however it is taken."""
    result = Result()
    for event in events:
        buffer.receive(event)
        result.add(buffer.take())
    buffer.over(told=True)
    result.add(buffer.take())
    return result


def ended(result: Result, end: Finished) -> Result:
    """With an end that a decoder can tell: an answer without text and calls counts as failed."""
    said = any(
        isinstance(output, ToolCall | OpenCall) or (isinstance(output, TextOutput) and output.text)
        for output in result.outputs
    )
    if end.outcome == "completed" and not said:
        return replace(result, end=failed(EMPTY))
    if end.outcome == "cancelled" and end.reason != CANCELLED:
        return replace(result, end=failed(INTERRUPTED))
    return replace(result, end=end)


def failed(message: str) -> Finished:
    from bridge.errors import UpstreamError

    return Finished("failed", error=UpstreamError(message))


def counted(usage: Usage) -> Usage:
    """No decoder believes an estimate to be one."""
    return replace(usage, estimated=False)


def normal_response(events: list[TurnEvent]) -> Answered:
    """Responses: only the ids of items, and how texts were cut, are lost."""
    result = collect(events)
    assert result.end is not None
    return answered(ended(result, result.end), counted)


def sse(stream: bytes) -> list[bytes]:
    return SseReader().feed(stream)


@given(answers())
def test_a_streamed_response_decodes_to_itself(events: list[TurnEvent]) -> None:
    stream = encode(responses_encoder(), events)
    assert answered(decoded(ResponsesBuffer(), sse(stream)), counted) == normal_response(events)


@given(answers())
def test_a_response_object_decodes_to_itself(events: list[TurnEvent]) -> None:
    """A call that was cut off is not in it for a decoder: nobody may run it."""
    encoder = responses_encoder(streaming=False)
    encode(encoder, events)
    buffer = ResponsesBuffer()
    buffer.receive_response_or_skip(orjson.loads(encoder.body()))
    wanted = normal_response(events)
    whole = tuple(output for output in wanted.outputs if output[:2] != ("call", OpenCall))
    assert buffer.skipped == 0
    assert answered(collect(buffer.take()), counted) == replace(wanted, outputs=whole)


def normal_run(events: list[TurnEvent]) -> Answered:
    """The exec wire: usage has three counts, and only a completed run tells them; anything but that is an error."""
    result = collect(events)
    end = result.end
    assert end is not None
    if end.outcome == "incomplete":
        end = failed(incomplete_message(str(end.reason)))
    elif end.outcome == "cancelled":
        end = failed(INTERRUPTED)
    usage = result.usage or Usage()
    kept = Usage(usage.input, usage.cached, usage.output) if end.outcome == "completed" else None
    return answered(ended(replace(result, usage=kept), end))


@given(answers())
def test_a_run_on_the_exec_wire_decodes_to_itself(events: list[TurnEvent]) -> None:
    encoder = WireEncoder("m", counter())
    lines = [*encoder.begin(), *encoder.feed(events)]
    assert answered(decoded(ResponsesBuffer(), lines)) == normal_run(events)


@dataclass(frozen=True)
class Completed:
    """What a chat completion says: chat has no items, so their order and their ids are lost, and so are searches."""

    text: str
    reasoning: str
    calls: list[tuple[str, str, str]]
    usage: Usage | None
    end: tuple[str, str | None]


def normal_chat(events: list[TurnEvent]) -> Completed:
    """Namespaces are part of the name; blank arguments are none; a failed stream tells no usage."""
    result = collect(events)
    end = result.end
    assert end is not None
    if end.outcome == "cancelled":
        end = failed(INTERRUPTED)
    end = ended(result, end).end or end
    is_told = end.outcome in ("completed", "incomplete") or (end.error is not None and end.error.message == EMPTY)
    usage = result.usage or Usage()
    cached, reasoning = min(usage.cached, usage.input), min(usage.reasoning, usage.output)
    return Completed(
        result.text,
        shown_reasoning(events),
        chat_calls(result, end),
        Usage(usage.input, cached, usage.output, reasoning) if is_told else None,
        (end.outcome, end.error.message if end.error is not None else end.reason),
    )


def shown_reasoning(events: list[TurnEvent]) -> str:
    """The summaries with a blank line between their parts; a part begins with its first character."""
    parts: dict[tuple[str, int], str] = {}
    for event in events:
        if isinstance(event, ReasoningDelta):
            key, said = (event.item, event.index), "".join(event.pieces)
            if said or key in parts:
                parts[key] = parts.get(key, "") + said
    return "\n\n".join(parts.values())


def chat_calls(result: Result, end: Finished) -> list[tuple[str, str, str]]:
    """The calls in their order. Of an answer that was cut off nobody knows which custom call is whole: those come last,
    so the order says nothing.
    """
    calls = []
    for call in result.begun_calls:
        name = call.name if call.namespace is None else f"{call.namespace}.{call.name}"
        blank = not call.arguments.strip()
        calls.append((call.call_id, name, ("" if call.custom else "{}") if blank else call.arguments))
    return calls if end.outcome == "completed" else sorted(calls)


def completed(result: Result) -> Completed:
    end = result.end
    assert end is not None
    thoughts = [output for output in result.outputs if isinstance(output, ReasoningOutput)]
    return Completed(
        result.text,
        "".join("".join(thought.content_parts()) for thought in thoughts),
        chat_calls(result, end),
        result.usage,
        (end.outcome, end.error.message if end.error is not None else end.reason),
    )


@given(answers(raw=False))
def test_a_streamed_completion_decodes_to_itself(events: list[TurnEvent]) -> None:
    buffer = ChatBuffer(None)
    reader = buffer.reader()
    stream = reader.feed(encode(chat_encoder(include_usage=True), events))
    assert completed(decoded(buffer, stream)) == normal_chat(events)


@given(answers(successes, raw=False))
def test_a_completion_object_decodes_to_itself(events: list[TurnEvent]) -> None:
    encoder = chat_encoder(streaming=False)
    encode(encoder, events)
    assert completed(decoded(ChatBuffer(None), [encoder.body()])) == normal_chat(events)


@given(answers(successes, raw=False))
def test_a_completion_with_the_old_functions_decodes_to_itself(events: list[TurnEvent]) -> None:
    """It has one call at most, whose id and namespace are lost. Blank arguments are none."""
    wanted, buffer = collect(events), ChatBuffer(None)
    found = decoded(buffer, buffer.reader().feed(encode(chat_encoder(functions=True), events)))
    assert found.text == wanted.text
    if wanted.end == Finished("completed"):
        calls = [(call.name, call.arguments if call.arguments.strip() else "{}") for call in wanted.begun_calls[:1]]
        assert [(call.name, call.arguments) for call in found.calls] == calls


@given(st.lists(answers(successes, raw=False), min_size=2, max_size=3))
def test_several_choices_decode_to_themselves(choices: list[list[TurnEvent]]) -> None:
    """Each for itself; the usage is that of all together, and is said of the first."""
    events: list[TurnEvent] = [Choice(index, each) for index, each in enumerate(choices)]
    stream = encode(choices_encoder(len(choices)), [*events, Finished("completed")])
    buffer = ChoicesBuffer(lambda: ChatBuffer(None))
    results = [Result() for _ in choices]
    for event in ChatBuffer.reader().feed(stream):
        buffer.receive_or_skip(orjson.loads(event))
    buffer.over(told=True)
    for choice in buffer.take():
        assert isinstance(choice, Choice)
        results[choice.index].add(choice.events)
    for result, wanted in zip(results, choices, strict=True):
        assert replace(completed(result), usage=None) == replace(normal_chat(wanted), usage=None)


NOTHING = Turn("", "", (), web_search=WebSearchOptions())
"""The turn of an answer whose tools are not known."""


def normal_message(events: list[TurnEvent], *, streamed: bool = True) -> Answered:
    """Messages: texts without a block between them are one; reasoning is one text, and its signature names no model;
    custom tools are functions of a text; a search has its query alone; only what did not
    fail tells its usage. A last call counts as cut off if the answer was, and if its arguments are not JSON.
    """
    result = collect(events)
    end = result.end
    assert end is not None
    end = failed(INTERRUPTED) if end.outcome == "cancelled" else end
    end = ended(result, end).end or end
    outputs: list[Any] = []
    for output in result.outputs:
        form = message_form(output)
        if form is None or (not streamed and form[:2] == ("call", OpenCall)):
            continue
        if form[0] == "text" and outputs and outputs[-1][0] == "text":
            outputs[-1] = ("text", outputs[-1][1] + form[1])
        else:
            outputs.append(form)
    is_told = end.error is None or end.error.message == EMPTY
    last: tuple[Any, ...] = outputs[-1] if outputs else ()
    if streamed and end.outcome != "completed" and last[:2] == ("call", ToolCall) and not is_json(last[4]):
        outputs[-1] = ("call", OpenCall, *last[2:])
    return Answered(tuple(outputs), message_usage(result.usage or Usage()) if is_told else Usage(), end_of(end))


def end_of(end: Finished) -> tuple[str, str | None]:
    return end.outcome, end.error.message if end.error is not None else end.reason


def message_usage(usage: Usage) -> Usage:
    """The parts of the input are told, and not their sum."""
    fresh = max(0, usage.input - usage.cached - usage.cache_write)
    total = fresh + usage.cached + usage.cache_write
    return replace(usage, input=total, reasoning=min(usage.reasoning, usage.output), estimated=False)


def message_form(output: Any) -> Any:
    if isinstance(output, ReasoningOutput):
        text = "\n\n".join(part for part in output.summary_parts() if part)
        if not text and output.encrypted is None:
            return None
        block = client_block(text, output.encrypted, output.item)
        return "reasoning", (text,) if text else (), (), pack_thought("", block) if output.encrypted else None
    if isinstance(output, WebSearch):
        queries = output.action.get("queries") or [""]
        query = output.action.get("query") or output.action.get("url") or queries[0]
        return "search", {"type": "search", "query": query}
    if isinstance(output, TextOutput):
        return comparable(output)
    call = output.so_far if isinstance(output, OpenCall) else output
    arguments = call.arguments
    if call.custom:
        arguments = arguments_of(arguments) if isinstance(output, ToolCall) else ""
    if isinstance(output, ToolCall):
        arguments = arguments_or_none(arguments)
    elif not arguments.strip():
        arguments = ""
    name = call.name if call.namespace is None else f"{call.namespace}.{call.name}"
    return "call", type(output), call.call_id, (None, name), arguments


def numbered(answer: Answered) -> Answered:
    """The ids of an answer's calls have numbers from the second one on: only the first is compared."""
    calls = [output for output in answer.outputs if output[0] == "call"]
    outputs = [
        (*output[:2], output[2].rpartition("--")[0] or output[2], *output[3:]) if output in calls[1:] else output
        for output in answer.outputs
    ]
    return replace(answer, outputs=tuple(outputs))


@given(answers(raw=False))
def test_a_streamed_message_decodes_to_itself(events: list[TurnEvent]) -> None:
    stream = encode(messages_encoder(), events)
    assert numbered(answered(decoded(MessagesBuffer(NOTHING), sse(stream)))) == normal_message(events)


@given(answers(successes, raw=False))
def test_a_message_object_decodes_to_itself(events: list[TurnEvent]) -> None:
    """A call that was cut off is not in it: no client may run it. The input of a call is an object."""
    encoder = messages_encoder(streaming=False)
    encode(encoder, events)
    wanted = normal_message(events, streamed=False)
    outputs = [
        (*output[:4], orjson.loads(exact_json.dumps(message_input(output[4])))) if output[0] == "call" else output
        for output in wanted.outputs
    ]
    found = numbered(answered(decoded(MessagesBuffer(NOTHING), [encoder.body()])))
    read = [(*output[:4], orjson.loads(output[4])) if output[0] == "call" else output for output in found.outputs]
    assert replace(found, outputs=tuple(read)) == replace(wanted, outputs=tuple(outputs))


# Turns

words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
names = st.text("abcXYZ_09-", min_size=1, max_size=8)
schemas = st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(names, st.just({}))})
functions = st.builds(
    FunctionTool, names, st.none() | words, st.none() | schemas, st.none() | st.booleans(), st.none() | names
)
customs = st.builds(
    lambda name, about: function_of({"type": "custom", "name": name, "description": about}, name), names, words
)
searches = st.sampled_from(["live", "cached"]).map(
    lambda mode: RawTool("web_search", {"type": "web_search", "external_web_access": mode == "live"})
)
images = st.builds(Image, st.just("data:image/png;base64,AA=="), st.sampled_from([None, "low", "high", "auto"]))
PDF = "data:application/pdf;base64,JVBERi0xLjc="
documents = st.builds(Document, st.sampled_from([PDF, "https://x/a.pdf"]), st.none() | names)
formats = st.one_of(
    st.none(),
    st.just(OutputFormat("json_object", {"type": "json_object"})),
    st.builds(
        lambda name, schema, strict: OutputFormat(
            "json_schema", {"type": "json_schema", "name": name, "schema": schema, "strict": strict}, schema, strict
        ),
        names,
        schemas,
        st.booleans(),
    ),
)
some = st.floats(0, 1, allow_nan=False)


@st.composite
def histories(draw: st.DrawFn, *, chat: bool = False) -> tuple[Item, ...]:
    """Messages, and calls with their outputs. Without `chat`, everything that only the Responses API has as well."""
    items: list[Item] = []
    parts = st.builds(Text, words) if chat else st.builds(Text, words) | images | documents
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["message", "calls"] if chat else ["message", "calls", "raw"]))
        if kind == "message":
            role: Any = draw(st.sampled_from(["system", "user", "assistant"] if chat else ROLES))
            items.append(Message(role, tuple(draw(st.lists(parts, min_size=1, max_size=1 if chat else 3)))))
        elif kind == "raw":
            thought = {"type": "reasoning", "id": f"rs_{number}", "encrypted_content": draw(words)}
            items.append(RawItem("reasoning", thought))
        else:
            called = [f"call_{number}_{index}" for index in range(draw(st.integers(1, 2)))]
            custom = not chat and draw(st.booleans())
            space = None if chat else draw(st.none() | names)
            items += [FunctionCall(call, draw(names), draw(words), space, custom) for call in called]
            outputs = st.lists(parts, min_size=1, max_size=1) if chat else st.lists(parts, max_size=3)
            items += [FunctionOutput(call, tuple(draw(outputs)), custom) for call in called]
    return tuple(items)


ROLES = ["system", "developer", "user", "assistant"]


@st.composite
def offers(draw: st.DrawFn, tool: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Tools, a choice among them, and whether the web may be searched."""
    tools = draw(st.lists(tool, max_size=4, unique_by=lambda tool: getattr(tool, "full_name", "web_search")))
    named = [tool.full_name for tool in tools if isinstance(tool, FunctionTool)]
    choices = [ToolChoice(), ToolChoice("none"), ToolChoice("required"), *(ToolChoice("named", n) for n in named)]
    choice = draw(st.sampled_from(choices))
    raw = next((tool for tool in tools if isinstance(tool, RawTool)), None)
    search = None
    if raw is not None and choice.mode != "none":
        search = WebSearchOptions("live" if raw.data["external_web_access"] else "cached")
    return {"tools": tuple(tools), "tool_choice": choice, "web_search": search}


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    return Turn(
        "m",
        "m",
        draw(histories()),
        draw(st.none() | words),
        **draw(offers(functions | customs | searches)),
        effort=draw(st.none() | st.sampled_from(["none", "low", "high"])),
        summary=draw(st.none() | st.sampled_from(["auto", "concise"])),
        output_format=draw(formats),
        stream=draw(st.none() | st.booleans()),
        include_usage=draw(st.booleans()),
        temperature=draw(st.none() | some),
        top_p=draw(st.none() | some),
        max_output_tokens=draw(st.none() | st.integers(1, 9999)),
        parallel=draw(st.booleans()),
        verbosity=draw(st.none() | st.sampled_from(["low", "high"])),
        service_tier=draw(st.none() | st.sampled_from(["priority", "flex"])),
        encrypted_reasoning=draw(st.booleans()),
    )


@given(turns())
def test_a_responses_request_parses_as_its_turn(turn: Turn) -> None:
    body = orjson.loads(orjson.dumps(build_request(turn)))
    assert parse_responses(body) == turn


EXACT = Preset(verbosity=True, service_tier=True, limit="max_completion_tokens")
"""A server that takes everything that the protocol has."""


def stored(item: Item) -> Item:
    """What the store keeps of an item: every image has a detail, a file has a name, and several texts are one text."""
    if isinstance(item, FunctionOutput) and all(isinstance(part, Text) for part in item.parts):
        return replace(item, parts=(Text(item.text),))
    if isinstance(item, Message | FunctionOutput):
        return replace(item, parts=tuple(map(stored_part, item.parts)))
    return item


def stored_part(part: Part) -> Part:
    if isinstance(part, Image):
        return replace(part, detail=part.detail or "auto")
    if isinstance(part, Document) and part.url == PDF:
        return replace(part, name=part.name or "document.pdf")
    return part


@given(histories())
def test_a_stored_item_reads_as_itself(items: tuple[Item, ...]) -> None:
    """So a later request continues the conversation that an earlier one stored."""
    kept = orjson.loads(orjson.dumps(build_stored_items(items, counter())))
    assert read_items(kept, "previous") == tuple(map(stored, items))


@given(answers(successes))
def test_the_output_of_a_response_reads_as_its_items(events: list[TurnEvent]) -> None:
    """A client, or the store, sends the items of an answer back as they are."""
    encoder = responses_encoder(streaming=False)
    encode(encoder, events)
    read = read_items(encoder.output, "input")
    result = collect(events)
    assert "".join(item.text for item in read if isinstance(item, Message)) == result.text
    assert [item for item in read if isinstance(item, FunctionCall)] == [
        FunctionCall(call.call_id, call.name, call.arguments, call.namespace, call.custom)
        for call in result.begun_calls
    ]


@st.composite
def chat_turns(draw: st.DrawFn) -> Turn:
    """Without what chat completions have no place for: namespaces, custom tools, summaries, encrypted thoughts."""
    plain = st.builds(lambda tool, parameters: replace(tool, namespace=None, parameters=parameters), functions, schemas)
    return Turn(
        "m",
        "m",
        draw(histories(chat=True)),
        **draw(offers(plain)),
        effort=draw(st.none() | st.sampled_from(["none", "low", "high"])),
        output_format=draw(formats),
        stream=True,
        include_usage=True,
        temperature=draw(st.none() | some),
        top_p=draw(st.none() | some),
        max_output_tokens=draw(st.none() | st.integers(1, 9999)),
        parallel=draw(st.booleans()),
        verbosity=draw(st.none() | st.sampled_from(["low", "high"])),
        service_tier=draw(st.none() | st.sampled_from(["priority", "flex"])),
        **FORM,
    )


def normal_chat_turn(turn: Turn) -> Turn:
    """Without tools there is no choice among them and nothing in parallel; `strict` is true or not there; blank
    arguments are none; a format is nested.
    """
    tools = tuple(replace(tool, strict=tool.strict or None) for tool in turn.functions)
    items = tuple(
        replace(item, arguments=item.arguments if item.arguments.strip() else "{}")
        if isinstance(item, FunctionCall)
        else item
        for item in turn.items
    )
    wanted = turn.output_format
    if wanted is not None and wanted.schema is not None:
        nested = {"name": wanted.raw["name"], "schema": wanted.schema} | ({"strict": True} if wanted.strict else {})
        wanted = replace(wanted, raw={"type": "json_schema", "json_schema": nested})
    turn = replace(turn, tools=tools, items=items, output_format=wanted)
    return turn if tools else replace(turn, tool_choice=ToolChoice(), parallel=True)


signatures = st.text("abcXYZ019+/=", min_size=1, max_size=8)
objects = st.dictionaries(names, words | st.integers(), max_size=2).map(lambda given: exact_json.dumps(given).decode())
closed_schemas = st.dictionaries(names, st.just({"type": "string"}), max_size=2).map(
    lambda properties: {"type": "object", "properties": properties, "additionalProperties": False}
)
SEEN = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), min_size=1, max_size=6)
"""Blank texts are left out of messages."""


@st.composite
def dialogues(draw: st.DrawFn, model: str, *, thinks: bool) -> tuple[Item, ...]:
    """The user and the model in turn, with calls and their outputs; signed reasoning only where the model may think."""
    parts = st.lists(st.builds(Text, SEEN) | media, min_size=1, max_size=3)
    items: list[Item] = [Message("user", tuple(draw(parts)))]
    for number in range(draw(st.integers(0, 3))):
        called = [f"call_{number}_{index}" for index in range(draw(st.integers(0, 2)))]
        said = draw(st.lists(st.builds(Text, SEEN), min_size=0 if called else 1, max_size=2))
        if thinks and draw(st.booleans()):
            text = draw(words)
            block = {"type": "thinking", "thinking": text, "signature": draw(signatures)}
            summary = [{"type": "summary_text", "text": text}]
            packed = pack_thought(model, block)
            items.append(RawItem("reasoning", {"type": "reasoning", "summary": summary, "encrypted_content": packed}))
        if said:
            items.append(Message("assistant", tuple(said)))
        items += [FunctionCall(call, draw(names), draw(objects)) for call in called]
        for call in called:
            output = draw(st.just([]) | st.lists(st.builds(Text, SEEN), min_size=1, max_size=1) | media_lists)
            items.append(FunctionOutput(call, (*([FAILED] if draw(st.booleans()) else []), *output)))
        if not called or draw(st.booleans()):
            items.append(Message("user", tuple(draw(parts))))
    return tuple(items)


media = images.map(lambda image: Image(image.url)) | documents
media_lists = st.lists(media, min_size=1, max_size=2)


@st.composite
def message_turns(draw: st.DrawFn) -> Turn:
    """Without what the protocol has no place for: namespaces, custom tools, system messages before the first one."""
    # One has budgets, the other efforts, schemas and a choice whatever it thinks.
    model = draw(st.sampled_from(["claude-sonnet-4-5", "claude-opus-4-6"]))
    has_efforts = model == "claude-opus-4-6"
    plain = st.builds(
        lambda tool, schema: FunctionTool(tool.name, (tool.description and tool.description.strip()) or None, schema),
        functions,
        schemas,
    )
    offer = draw(offers(plain))
    if offer["tool_choice"].mode != "none":
        domains = st.lists(names, max_size=2).map(tuple)
        places = st.dictionaries(st.sampled_from(["city", "country"]), names)
        offer["web_search"] = draw(st.none() | st.builds(WebSearchOptions, st.just("live"), domains, st.none(), places))
    can_think = has_efforts or offer["tool_choice"].mode in ("auto", "none")
    # Budgets need the reasoning before calls that are answered, which not every dialogue has.
    effort = draw(st.none() | st.sampled_from(["low", "medium", "high"])) if can_think and has_efforts else None
    samples: dict[str, Any] = {} if effort else {draw(st.sampled_from(["temperature", "top_p"])): draw(some)}
    return Turn(
        model,
        model,
        draw(dialogues(model, thinks=effort is not None)),
        draw(st.none() | SEEN),
        **offer,
        effort=effort,
        output_format=draw(st.none() | closed_schemas.map(schema_format)) if has_efforts else None,
        stream=True,
        include_usage=True,
        max_output_tokens=draw(st.integers(1, 9999)),
        parallel=draw(st.booleans()),
        encrypted_reasoning=effort is not None,
        field_names=FIELD_NAMES,
        **samples,
    )


def schema_format(schema: dict[str, Any]) -> OutputFormat:
    return OutputFormat("json_schema", {"type": "json_schema", "schema": schema}, schema, strict=True)


def normal_message_turn(turn: Turn) -> Turn:
    """Without tools there is no choice among them and nothing in parallel; a search cannot be forced."""
    if turn.tool_choice.mode == "none":
        turn = replace(turn, parallel=True)
    if turn.tools:
        return turn
    if turn.web_search is not None:
        return replace(turn, tool_choice=ToolChoice())
    called = {item.full_name: None for item in turn.items if isinstance(item, FunctionCall)}
    # Tools that were called must be offered; the choice is then none.
    tools = tuple(FunctionTool(name, None, {"type": "object"}) for name in called)
    return replace(turn, tools=tools, tool_choice=ToolChoice("none" if tools else "auto"), parallel=True)


@given(message_turns())
def test_a_messages_request_parses_as_its_turn(turn: Turn) -> None:
    body = exact_json.loads(exact_json.dumps(build_message(turn)))
    assert parse_messages(body) == normal_message_turn(turn)


@given(st.sampled_from(["low", "medium", "high", "xhigh"]))
def test_a_budget_parses_as_its_effort(effort: str) -> None:
    turn = Turn("claude-sonnet-4-5", "m", (Message("user", (Text("hi"),)),), effort=effort)
    assert parse_messages(build_message(turn)).effort == effort


@given(chat_turns())
def test_a_chat_request_parses_as_its_turn(turn: Turn) -> None:
    body = orjson.loads(orjson.dumps(build_body(turn, EXACT)))
    assert parse_chat(body) == normal_chat_turn(turn)


@given(st.lists(st.builds(Text, SEEN) | st.builds(Document, st.just(PDF), names), min_size=1, max_size=3))
def test_a_chat_message_with_documents_parses_as_itself(parts: list[Part]) -> None:
    assume(not all(isinstance(part, Text) for part in parts))
    message = Message("user", tuple(parts))
    preset = replace(EXACT, documents="file")
    body = orjson.loads(orjson.dumps(build_body(Turn("m", "m", (message,)), preset)))
    assert parse_chat(body).items == (message,)
