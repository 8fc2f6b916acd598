"""The laws of the Gemini codec: an answer that is encoded decodes to itself, a turn that is built parses as itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from property.test_codec_laws import (
    EMPTY,
    INTERRUPTED,
    SEEN,
    Answered,
    answered,
    decoded,
    end_of,
    ended,
    failed,
    functions,
    names,
    schemas,
    some,
    sse,
)
from property.test_encoders_properties import answers, successes
from protocols.cases import counter, encode

from bridge import exact_json
from bridge.core.collect import OpenCall, ReasoningOutput, TextOutput, collect
from bridge.core.events import TurnEvent, Usage, WebSearch
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
    Text,
    ToolChoice,
    WebSearchOptions,
    full_name,
)
from bridge.core.turn import Turn
from bridge.protocols.gemini.decoder import GeminiBuffer
from bridge.protocols.gemini.encoder import GeminiEncoder, args_object
from bridge.protocols.gemini.request import FIELD_NAMES, parse_gemini
from bridge.protocols.gemini.signatures import Thought, signature_of, thoughts_in
from bridge.protocols.gemini.tools import json_schema
from bridge.tools.payload import arguments_of


def encoder(**options: Any) -> GeminiEncoder:
    return GeminiEncoder("mock-text", counter(), **options)


def normal_answer(events: list[TurnEvent]) -> Answered:
    """Neighbouring texts are one, and so are neighbouring thoughts; encrypted reasoning comes after its text, before
    the next text or call, or at the end of an answer that did not fail; searches and calls that were cut off are lost;
    custom tools are functions of a text; the end of what did not fail tells the usage.
    """
    result = collect(events)
    end = result.end
    assert end is not None
    end = failed(INTERRUPTED) if end.outcome == "cancelled" else end
    kept: list[Any] = [output for output in result.outputs if not isinstance(output, OpenCall)]
    end = ended(replace(result, outputs=kept), end).end or end
    outputs: list[Any] = []
    pending: list[Any] = []
    for output in result.outputs:
        if isinstance(output, OpenCall | WebSearch):
            continue
        if isinstance(output, ReasoningOutput):
            text = "\n\n".join(part for part in output.summary_parts() if part)
            if text and outputs and outputs[-1][0] == "thought":
                outputs[-1] = ("thought", outputs[-1][1] + "\n\n" + text)
            elif text:
                outputs.append(("thought", text))
            pending += [("signature", output.encrypted)] if output.encrypted is not None else []
        elif isinstance(output, TextOutput):
            if output.text and outputs and outputs[-1][0] == "text" and not pending:
                outputs[-1] = ("text", outputs[-1][1] + output.text)
            elif output.text:
                outputs += [*pending, ("text", output.text)]
                pending = []
        else:
            arguments = arguments_of(output.arguments) if output.custom else output.arguments
            name = full_name(output.namespace, output.name)
            outputs += [
                *pending,
                ("call", output.call_id, name, orjson.loads(exact_json.dumps(args_object(arguments)))),
            ]
            pending = []
    outputs += pending if end.outcome != "failed" else []
    is_told = end.error is None or end.error.message == EMPTY
    return Answered(tuple(outputs), usage_of(result.usage or Usage()) if is_told else None, end_of(end))


def usage_of(usage: Usage) -> Usage:
    """Thoughts and the rest are told, and not their sum; what the cache has written is not."""
    output = max(0, usage.output - usage.reasoning) + usage.reasoning
    return Usage(usage.input, usage.cached, output, usage.reasoning)


def read(stream: list[bytes]) -> Answered:
    """A decoded answer in the form of `normal_answer`."""
    result = decoded(GeminiBuffer(), stream)
    outputs: list[Any] = []
    for output in result.outputs:
        if isinstance(output, ReasoningOutput):
            text = "".join(output.summary_parts())
            outputs += [("thought", text)] if text else []
            outputs += [("signature", output.encrypted)] if output.encrypted is not None else []
        elif isinstance(output, TextOutput):
            outputs.append(("text", output.text))
        else:
            assert not isinstance(output, WebSearch | OpenCall)
            outputs.append(("call", output.call_id, output.name, orjson.loads(output.arguments)))
    return replace(answered(result), outputs=tuple(outputs))


@given(answers(raw=False))
def test_a_stream_decodes_to_itself(events: list[TurnEvent]) -> None:
    assert read(sse(encode(encoder(), events))) == normal_answer(events)


@given(answers(raw=False))
def test_an_array_has_the_same_chunks(events: list[TurnEvent]) -> None:
    """Each element is on a line of its own, and the whole is JSON."""
    chunks = orjson.loads(encode(encoder(events=False), events))
    assert chunks == [orjson.loads(chunk) for chunk in sse(encode(encoder(), events))]


@given(answers(successes, raw=False))
def test_a_whole_response_decodes_to_itself(events: list[TurnEvent]) -> None:
    whole = encoder(streaming=False)
    encode(whole, events)
    assert read([whole.body()]) == normal_answer(events)


# Turns

objects = st.dictionaries(names, SEEN | st.integers(0, 99), max_size=2)
pictures: st.SearchStrategy[Image | Document] = st.sampled_from(
    [Image("data:image/png;base64,AA=="), Document("data:application/pdf;base64,JVBERi0=", "a")]
)


@st.composite
def dialogues(draw: st.DrawFn) -> tuple[Item, ...]:
    """The user and the model in turn, with calls, their outputs, and reasoning before them."""
    parts = st.lists(st.builds(Text, SEEN) | pictures, min_size=1, max_size=3)
    items: list[Item] = [Message("user", tuple(draw(parts)))]
    for number in range(draw(st.integers(0, 3))):
        called = [f"call_{number}_{index}" for index in range(draw(st.integers(0, 2)))]
        said = draw(st.lists(st.builds(Text, SEEN), min_size=0 if called else 1, max_size=2))
        if draw(st.booleans()):
            content = f"bridge.thought.1.0123456789abcdef:{number}"
            thought = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": content}
            items.append(RawItem("reasoning", thought))
        if said:
            items.append(Message("assistant", tuple(said)))
        items += [FunctionCall(call, draw(names), exact_json.dumps(draw(objects)).decode()) for call in called]
        for call in called:
            text = [Text(draw(SEEN))]
            output = draw(st.sampled_from([[], text, [FAILED, *text]]))
            items.append(FunctionOutput(call, (*output, *draw(st.lists(pictures, max_size=1)))))
        if not called or draw(st.booleans()):
            items.append(Message("user", tuple(draw(parts))))
    return tuple(items)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    tools = draw(st.lists(functions, max_size=3, unique_by=lambda tool: tool.name))
    offered = tuple(FunctionTool(tool.name, tool.description, tool.parameters) for tool in tools)
    named = [ToolChoice("named", tool.name) for tool in offered]
    required = [ToolChoice("required")] if offered else []
    choice = draw(st.sampled_from([ToolChoice(), ToolChoice("none"), *required, *named]))
    effort = draw(st.sampled_from([None, "minimal", "low", "medium", "high", "xhigh"]))
    count = draw(st.sampled_from([None, 2, 3]))
    search = draw(st.booleans()) and choice.mode != "none"
    formats = st.none() | st.just(OutputFormat("json_object", {"type": "json_object"})) | schemas.map(schema_format)
    return Turn(
        "m",
        "m",
        draw(dialogues()),
        draw(st.none() | SEEN),
        tools=offered,
        tool_choice=choice,
        effort=effort,
        output_format=draw(formats),
        stream=draw(st.booleans()),
        include_usage=True,
        temperature=draw(st.none() | some),
        top_p=draw(st.none() | some),
        max_output_tokens=draw(st.none() | st.integers(1, 9999)),
        n=count,
        stop=tuple(draw(st.lists(SEEN, max_size=2))),
        web_search=WebSearchOptions() if search else None,
        encrypted_reasoning=effort is not None,
        field_names=FIELD_NAMES,
    )


def schema_format(schema: dict[str, Any]) -> OutputFormat:
    return OutputFormat("json_schema", {"type": "json_schema", "name": "response", "schema": schema}, schema)


def body_of(turn: Turn) -> dict[str, Any]:
    """A turn as a client writes it, members in either spelling."""
    config: dict[str, Any] = {
        "temperature": turn.temperature,
        "top_p": turn.top_p,
        "maxOutputTokens": turn.max_output_tokens,
        "candidateCount": turn.n,
        "stop_sequences": list(turn.stop),
    }
    if turn.effort is not None:
        config["thinkingConfig"] = {"thinking_level": turn.effort.upper()}
    wanted = turn.output_format
    if wanted is not None:
        config["responseMimeType"] = "application/json"
    if wanted is not None and wanted.schema is not None:
        config["responseJsonSchema"] = wanted.schema
    declared = [
        {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
        for tool in turn.functions
    ]
    mode = turn.tool_choice.mode
    calling: dict[str, Any] = {"mode": {"auto": "AUTO", "none": "NONE"}.get(mode, "ANY")}
    if mode == "named":
        calling["allowedFunctionNames"] = [turn.tool_choice.name]
    return {
        "model": f"models/{turn.model}",
        "stream": turn.stream,
        "contents": contents_of(turn),
        "system_instruction": None if turn.instructions is None else {"parts": [{"text": turn.instructions}]},
        "tools": [{"function_declarations": declared}, *([{"googleSearch": {}}] if turn.web_search else [])],
        "toolConfig": {"functionCallingConfig": calling},
        "generationConfig": config,
    }


def contents_of(turn: Turn) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = []
    called: dict[str, str] = {}
    signed: dict[str, Any] = {}
    for item in turn.items:
        if isinstance(item, RawItem):
            signed = {"thoughtSignature": signature_of([Thought(item.data["id"], item.data["encrypted_content"])])}
            continue
        role, parts = "user", list[dict[str, Any]]()
        if isinstance(item, Message):
            role = "model" if item.role == "assistant" else "user"
            parts = [part_of(part) for part in item.parts]
        elif isinstance(item, FunctionCall):
            role, called[item.call_id] = "model", item.name
            call = {"id": item.call_id, "name": item.name, "args": orjson.loads(item.arguments)}
            parts = [{"functionCall": call}]
        elif isinstance(item, FunctionOutput):
            texts = [part.text for part in item.parts if isinstance(part, Text)]
            files = [part_of(part) for part in item.parts if not isinstance(part, Text)]
            given = {"error" if item.parts[:1] == (FAILED,) else "output": texts[-1]} if texts else {}
            answer = {"id": item.call_id, "name": called[item.call_id], "response": given, "parts": files}
            parts = [{"functionResponse": answer}]
        parts[0] |= signed
        signed = {}
        contents.append({"role": role, "parts": parts})
    return contents


def part_of(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"text": part.text}
    kind, _, data = part.url.removeprefix("data:").partition(";base64,")
    named = {"displayName": part.name} if isinstance(part, Document) else {}
    return {"inline_data": {"mimeType": kind, "data": data, **named}}


@given(turns())
def test_a_request_parses_as_its_turn(turn: Turn) -> None:
    assert parse_gemini(orjson.loads(orjson.dumps(body_of(turn)))) == turn


def test_responses_without_ids_belong_to_the_calls_of_their_name() -> None:
    """In the order of the calls; the ids are the bridge's own."""
    calls = [{"functionCall": {"name": name, "args": {"n": number}}} for number, name in enumerate(["a", "b", "a"])]
    answers = [{"functionResponse": {"name": name, "response": {"output": text}}} for name, text in ("a1", "a2", "b1")]
    body = {
        "model": "m",
        "contents": [{"parts": [{"text": "hi"}]}, {"role": "model", "parts": calls}, {"parts": answers}],
    }
    items = parse_gemini(body).items
    by_id = {item.call_id: item for item in items if isinstance(item, FunctionCall)}
    found = [(by_id[item.call_id].arguments, item.text) for item in items if isinstance(item, FunctionOutput)]
    assert found == [('{"n":0}', "1"), ('{"n":2}', "2"), ('{"n":1}', "1")]


def test_a_schema_of_the_api_becomes_json_schema() -> None:
    """With all that strict output asks for, if every property is required."""
    schema = {
        "type": "OBJECT",
        "properties": {
            "name": {"type": "STRING", "nullable": True, "max_length": "9"},
            "sizes": {"type": "ARRAY", "items": {"anyOf": [{"type": "INTEGER"}], "nullable": True}, "minItems": "1"},
        },
        "required": ["name", "sizes"],
        "propertyOrdering": ["name", "sizes"],
    }
    assert json_schema(schema) == {
        "type": "object",
        "properties": {
            "name": {"type": ["string", "null"], "maxLength": 9},
            "sizes": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "minItems": 1},
        },
        "required": ["name", "sizes"],
        "additionalProperties": False,
    }


def test_base64_may_be_in_the_alphabet_for_urls() -> None:
    """Google's Python SDK writes images and signatures in it, without the padding or with it."""
    thought = Thought("rs_1", "?>~?>")
    signature = signature_of([thought])
    assert "+" in signature or "/" in signature
    for sent in (signature, signature.replace("+", "-").replace("/", "_").rstrip("=")):
        assert thoughts_in(sent, None) == [thought]
    assert thoughts_in("+/8=", "call_1") == thoughts_in("-_8", "call_1")
    for data in ("+/8=", "-_8"):
        part = {"inlineData": {"mimeType": "image/png", "data": data}}
        (message,) = parse_gemini({"model": "m", "contents": [{"parts": [part]}]}).items
        assert isinstance(message, Message)
        assert message.parts == (Image("data:image/png;base64,+/8="),)
