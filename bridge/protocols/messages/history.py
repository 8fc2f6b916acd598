"""A turn's items as messages: roles alternate, and every call has its result right after it.

The calls of one answer are in one message, and so are their results, in the order of the calls. The order of the items
shows which calls belong together: everything from the model up to the first result is one answer. A history with each
result right after its call would hide that; so the second and later calls of an answer have ids that mark them.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from bridge import exact_json
from bridge.core.images import PDF, document_refusal
from bridge.core.items import FAILED, Document, FunctionCall, FunctionOutput, Image, Item, Message, Part, Text
from bridge.errors import InvalidRequest
from bridge.protocols.messages.models import thought_in
from bridge.protocols.upstream import ToolNames
from bridge.tools.payload import INPUT

# Texts and images as blocks of content.

_DATA_URL = re.compile(r"data:(image/[a-z+.-]+)(?:;[^;,]*)*;base64,(.*)", re.IGNORECASE | re.DOTALL)
_IMAGES = {
    "image/jpeg": "image/jpeg",
    "image/jpg": "image/jpeg",
    "image/png": "image/png",
    "image/gif": "image/gif",
    "image/webp": "image/webp",
}
_SPACE = re.compile(r"\s+")


def text_block(text: str) -> Block:
    """A text; it must not be blank."""
    return {"type": "text", "text": text}


def blocks_of(message: Message) -> list[Block]:
    """The blocks of a message. Blank texts are left out, since the API refuses them.

    A system or developer message in the middle becomes a marked message of the user. An assistant has neither images
    nor documents.
    """
    if message.role == "assistant":
        return [
            text_block(part.text if isinstance(part, Text) else f"[{type(part).__name__.lower()}]")
            for part in message.parts
            if _says(part)
        ]
    blocks = _blocks(message.parts)
    if message.role == "user" or not blocks:
        return blocks
    if all(block["type"] == "text" for block in blocks):
        return [text_block("\n".join(["<system-message>", *(block["text"] for block in blocks), "</system-message>"]))]
    return [text_block("<system-message>"), *blocks, text_block("</system-message>")]


def result_content(parts: Sequence[Part]) -> str | list[Block]:
    """The output of a function: texts as one text, anything with images as blocks."""
    if all(isinstance(part, Text) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, Text))
    return _blocks(parts)


def _blocks(parts: Sequence[Part]) -> list[Block]:
    return [_block(part) for part in parts if _says(part)]


def _says(part: Part) -> bool:
    return not isinstance(part, Text) or bool(part.text.strip())


def _block(part: Part) -> Block:
    if isinstance(part, Text):
        return text_block(part.text)
    return _image(part) if isinstance(part, Image) else _document(part)


def _document(document: Document) -> Block:
    """A PDF, the only kind of document besides text that the API reads."""
    title = {} if document.name is None else {"title": document.name}
    if document.media_type is None:
        if document.url[:8].lower() != "https://":
            raise document_refusal(document, "Anthropic", "Send it as a data URL with base64, or as an https URL.")
        return {"type": "document", "source": {"type": "url", "url": document.url}, **title}
    if document.media_type != PDF:
        raise document_refusal(document, "Anthropic", "Send a PDF, or the document's text.")
    data = document.url.partition(",")[2]
    return {"type": "document", "source": {"type": "base64", "media_type": PDF, "data": data}, **title}


def _image(image: Image) -> Block:
    if image.url[:8].lower() == "https://":
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    found = _DATA_URL.fullmatch(image.url.strip())
    if found is None:
        raise InvalidRequest(
            "An image must be a data URL with base64, or an https URL.", param="input", code="invalid_image_url"
        )
    media_type = _IMAGES.get(found[1].lower())
    if media_type is None:
        raise InvalidRequest(
            f"Images of type {found[1][:40]} are not supported; use JPEG, PNG, GIF or WebP.",
            param="input",
            code="unsupported_image_type",
        )
    data = _SPACE.sub("", found[2])
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


Block = dict[str, Any]

GO_ON = "Continue."
"""The user's message after a history that ends with an answer: few models can continue their own text."""
BEGIN = "(The conversation begins with the assistant.)"
NO_OUTPUT = "No output was given for this call."

_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_LATER_CALL = re.compile(r".+--\d+")


def later_call_id(call_id: str, number: int) -> str:
    """The id of the second, third, … call of one answer."""
    return f"{call_id}--{number}"


def split_system(items: Sequence[Item]) -> tuple[list[str], Sequence[Item]]:
    """The texts of the system and developer messages at the beginning, and all that follows them."""
    texts: list[str] = []
    for place, item in enumerate(items):
        if not isinstance(item, Message) or item.role not in ("system", "developer"):
            return texts, items[place:]
        if not all(isinstance(part, Text) for part in item.parts):
            return texts, items[place:]  # a system prompt has no images
        texts.append(item.text)
    return texts, ()


def build_messages(items: Sequence[Item], names: ToolNames, *, model: str, thinking: bool) -> list[dict[str, Any]]:
    """The messages, thoughts among them if `thinking`. Raises InvalidRequest for an image that cannot be given."""
    history = _History(items, names)
    for item in items:
        if isinstance(item, FunctionCall):
            history.call(item)
        elif isinstance(item, FunctionOutput):
            history.answer()
        elif isinstance(item, Message):
            history.message(item)
        elif thinking and (thought := thought_in(item, model)) is not None:
            history.think(thought)
    return history.finish()


def can_resume(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether the calls that are answered now come with the reasoning before them."""
    begun: Sequence[Block] | None = None
    for message in reversed(messages):
        if message["role"] == "assistant":
            begun = message["content"]
        elif not any(block["type"] == "tool_result" for block in message["content"]):
            break
    answers_calls = any(block["type"] == "tool_result" for block in messages[-1]["content"])
    return not answers_calls or begun is None or begun[0]["type"] in ("thinking", "redacted_thinking")


@dataclass(slots=True)
class _Message:
    """A message that may still grow."""

    role: str
    content: list[Block] = field(default_factory=list)
    words: int = 0
    """The number of the model's blocks before its calls."""
    only_results: bool = False


class _History:
    """The messages so far."""

    def __init__(self, items: Sequence[Item], names: ToolNames) -> None:
        self._names = names
        self._results = _match(items)
        self._calls = 0
        self._ids: dict[str, int] = {}
        """The ids in use, and how often each was requested."""
        self._messages: list[_Message] = []
        self._thoughts: list[Block] = []
        """Reasoning before its message. Without a message it is left out: none may end with reasoning."""
        self._due: list[Block] = []
        """The results for the calls of the last message."""

    def message(self, message: Message) -> None:
        blocks = blocks_of(message)
        if not blocks:
            return
        if message.role == "assistant":
            self._say(blocks)
        else:
            self.answer()
            self._open("user").content.extend(blocks)
            self._messages[-1].only_results = False

    def think(self, thought: Block) -> None:
        self._thoughts.append(thought)

    def call(self, call: FunctionCall) -> None:
        outputs = self._results[self._calls]
        self._calls += 1
        call_id, name = self._id(call.call_id), self._names.of(call.full_name)
        if _LATER_CALL.fullmatch(call.call_id):
            self._reopen()
        self._say([])
        self._open("assistant").content.append({"type": "tool_use", "id": call_id, "name": name, "input": _input(call)})
        self._due.append(_result(call_id, outputs))

    def answer(self) -> None:
        """Add the results of the last calls, wherever they are in the history."""
        self._thoughts.clear()
        if self._due:
            self._messages.append(_Message("user", self._due, only_results=True))
            self._due = []

    def finish(self) -> list[dict[str, Any]]:
        self.answer()
        if not self._messages or self._messages[-1].role == "assistant":
            self._open("user").content.append(text_block(GO_ON))
        if self._messages[0].role == "assistant":
            self._messages.insert(0, _Message("user", [text_block(BEGIN)]))
        return [{"role": message.role, "content": message.content} for message in self._messages]

    def _say(self, blocks: list[Block]) -> None:
        """Add the model's text, after its reasoning and before its calls."""
        said, self._thoughts = [*self._thoughts, *blocks], []
        if said:
            message = self._open("assistant")
            message.content[message.words : message.words] = said
            message.words += len(said)

    def _open(self, role: str) -> _Message:
        """The last message, if it is of this role, or a new one."""
        if not self._messages or self._messages[-1].role != role:
            self._messages.append(_Message(role))
        return self._messages[-1]

    def _reopen(self) -> None:
        """The last calls with results belong to the same answer as the next call, and so does the text since then."""
        if self._due or not self._messages:
            return
        since = self._messages.pop() if self._messages[-1].role == "assistant" else None
        if self._messages and self._messages[-1].only_results:
            self._due = self._messages.pop().content
            self._thoughts[:0] = since.content if since is not None else []
        elif since is not None:
            self._messages.append(since)

    def _id(self, call_id: str) -> str:
        """A legal id, the same for the same history, and never twice in it."""
        digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        wanted = call_id if _LEGAL_ID.fullmatch(call_id) else f"call_{digest}"
        name = wanted
        while name in self._ids:
            self._ids[wanted] += 1
            name = f"{wanted}_{self._ids[wanted]}"
        self._ids[name] = 1
        return name


def _match(items: Sequence[Item]) -> list[list[FunctionOutput]]:
    """The outputs of each call, in the order of the calls. Outputs of a repeated id are assigned in order."""
    calls = [item for item in items if isinstance(item, FunctionCall)]
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, call in enumerate(calls):
        places[call.call_id].append(place)
    matched: list[list[FunctionOutput]] = [[] for _ in calls]
    used: defaultdict[str, int] = defaultdict(int)
    for item in items:
        if isinstance(item, FunctionOutput) and places[item.call_id]:
            own = places[item.call_id]
            matched[own[min(used[item.call_id], len(own) - 1)]].append(item)
            used[item.call_id] += 1
    return matched


def _input(call: FunctionCall) -> dict[str, Any]:
    """The arguments as an object, which the API requires.

    Other arguments are sent as a text under the name of a custom tool's input: nothing is lost or guessed.
    """
    if not call.custom:
        if not call.arguments.strip():
            return {}
        try:
            given = exact_json.loads(call.arguments)
            exact_json.dumps(given)  # not everything that it loads can be dumped
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            given = None
        if isinstance(given, dict):
            return given
    return {INPUT: call.arguments}


def _result(call_id: str, outputs: Sequence[FunctionOutput]) -> Block:
    if not outputs:
        return {"type": "tool_result", "tool_use_id": call_id, "content": NO_OUTPUT, "is_error": True}
    parts = [part for output in outputs for part in output.parts]
    result = {"type": "tool_result", "tool_use_id": call_id}
    if parts[:1] == [FAILED]:
        return {**result, "content": result_content(parts[1:]), "is_error": True}
    return {**result, "content": result_content(parts)}
