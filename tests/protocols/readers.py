"""Streams read back as a client does it, every rule of the protocol checked on the way."""

from __future__ import annotations

from typing import Any

from protocols.cases import read_frames
from protocols.official import check_chunk, check_event, check_message_event, check_response

from bridge.protocols.messages.encoder import message_input
from bridge.protocols.sse import DONE

TERMINAL = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    # The API has no event of its own for it.
    "cancelled": "response.incomplete",
}


class ReadResponse:
    """A client's view of a Responses stream.

    Numbers without gaps; items added and done once, one after the other, under one id and index; parts likewise; deltas
    that add up to the texts of the done events, of the items and of the final object; one terminal event, the last.
    """

    def __init__(self, stream: bytes) -> None:
        self.payloads = read_frames(stream)
        self.items: list[dict[str, Any]] = []
        self._parts: dict[tuple[str, int], str] = {}
        self._done: set[tuple[str, int]] = set()
        self._states: list[str] = []
        self._open: dict[str, Any] | None = None
        for number, payload in enumerate(self.payloads):
            check_event(payload)
            assert payload["sequence_number"] == number
            read = getattr(self, payload["type"].removeprefix("response.").replace(".", "_"))
            read(payload)
        assert self._open is None
        kinds = [payload["type"] for payload in self.payloads]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert [kind in TERMINAL.values() for kind in kinds] == [False] * (len(kinds) - 1) + [True]
        self.final = self.payloads[-1]["response"]
        assert self.final["id"] == self.payloads[0]["response"]["id"]
        assert self.final["output"] == self.items
        assert len({item["id"] for item in self.items}) == len(self.items)

    # The response

    def created(self, payload: dict[str, Any]) -> None:
        response = payload["response"]
        check_response(response)
        assert (response["status"], response["output"], response["usage"]) == ("in_progress", [], None)

    in_progress = created

    def completed(self, payload: dict[str, Any]) -> None:
        response = payload["response"]
        check_response(response)
        assert payload["type"] == TERMINAL[response["status"]]
        assert (response["error"] is not None) == (response["status"] == "failed")
        assert (response["incomplete_details"] is not None) == (response["status"] == "incomplete")
        assert (response["completed_at"] is not None) == (response["status"] == "completed")

    incomplete = failed = completed

    # Items

    def output_item_added(self, payload: dict[str, Any]) -> None:
        item = payload["item"]
        assert self._open is None
        assert payload["output_index"] == len(self.items)
        assert item["status"] == "in_progress"
        assert not any(item.get(name) for name in ("content", "summary", "arguments", "input", "encrypted_content"))
        self._open = item
        self._parts, self._done, self._states = {}, set(), []

    def output_item_done(self, payload: dict[str, Any]) -> None:
        item = payload["item"]
        assert self._open is not None
        for name in ("id", "type", "role", "call_id", "name", "namespace", "action"):
            assert item.get(name) == self._open.get(name)
        assert item["status"] in ("completed", "incomplete")
        assert payload["output_index"] == len(self.items)
        # A call that was cut off has no last word: clients run a call when they see that.
        is_cut = item["status"] == "incomplete" and item["type"] in ("function_call", "custom_tool_call")
        assert self._done == (set() if is_cut else self._parts.keys())
        assert self._texts("content") == [part["text"] for part in item.get("content", ())]
        assert self._texts("summary") == [part["text"] for part in item.get("summary", ())]
        for name in ("arguments", "input"):
            assert "".join(self._texts(name)) == item.get(name, "")
        searched = ["in_progress", "searching", "completed"] if item["type"] == "web_search_call" else []
        assert self._states == searched
        self.items.append(item)
        self._open = None

    # Texts

    def content_part_added(self, payload: dict[str, Any]) -> None:
        self._begin(payload, "message", "content", payload["content_index"])
        assert payload["part"]["text"] == ""

    def output_text_delta(self, payload: dict[str, Any]) -> None:
        self._add(payload, "content", payload["content_index"])

    def output_text_done(self, payload: dict[str, Any]) -> None:
        self._check(payload, "content", payload["content_index"], payload["text"])

    def content_part_done(self, payload: dict[str, Any]) -> None:
        self._check(payload, "content", payload["content_index"], payload["part"]["text"])
        self._end("content", payload["content_index"])

    # Reasoning

    def reasoning_summary_part_added(self, payload: dict[str, Any]) -> None:
        self._begin(payload, "reasoning", "summary", payload["summary_index"])
        assert payload["part"]["text"] == ""

    def reasoning_summary_text_delta(self, payload: dict[str, Any]) -> None:
        self._add(payload, "summary", payload["summary_index"])

    def reasoning_summary_text_done(self, payload: dict[str, Any]) -> None:
        self._check(payload, "summary", payload["summary_index"], payload["text"])

    def reasoning_summary_part_done(self, payload: dict[str, Any]) -> None:
        self._check(payload, "summary", payload["summary_index"], payload["part"]["text"])
        self._end("summary", payload["summary_index"])

    def reasoning_text_delta(self, payload: dict[str, Any]) -> None:
        if ("content", payload["content_index"]) not in self._parts:
            self._begin(payload, "reasoning", "content", payload["content_index"])
        self._add(payload, "content", payload["content_index"])

    def reasoning_text_done(self, payload: dict[str, Any]) -> None:
        self._check(payload, "content", payload["content_index"], payload["text"])
        self._end("content", payload["content_index"])

    # Calls

    def function_call_arguments_delta(self, payload: dict[str, Any]) -> None:
        if ("arguments", 0) not in self._parts:
            self._begin(payload, "function_call", "arguments", 0)
        self._add(payload, "arguments", 0)

    def function_call_arguments_done(self, payload: dict[str, Any]) -> None:
        self._parts.setdefault(("arguments", 0), "")
        self._check(payload, "arguments", 0, payload["arguments"])
        assert self._open is not None
        assert payload["name"] == self._open["name"]
        self._end("arguments", 0)

    def custom_tool_call_input_delta(self, payload: dict[str, Any]) -> None:
        if ("input", 0) not in self._parts:
            self._begin(payload, "custom_tool_call", "input", 0)
        self._add(payload, "input", 0)

    def custom_tool_call_input_done(self, payload: dict[str, Any]) -> None:
        self._parts.setdefault(("input", 0), "")
        self._check(payload, "input", 0, payload["input"])
        self._end("input", 0)

    def web_search_call_in_progress(self, payload: dict[str, Any]) -> None:
        self._here(payload)
        self._states.append(payload["type"].rpartition(".")[2])

    web_search_call_searching = web_search_call_completed = web_search_call_in_progress

    # Parts

    def _here(self, payload: dict[str, Any]) -> None:
        assert self._open is not None
        assert payload["item_id"] == self._open["id"]
        assert payload["output_index"] == len(self.items)

    def _begin(self, payload: dict[str, Any], owner: str, kind: str, index: int) -> None:
        self._here(payload)
        assert self._open is not None
        assert self._open["type"] == owner
        assert index == sum(key[0] == kind for key in self._parts)
        self._parts[kind, index] = ""

    def _add(self, payload: dict[str, Any], kind: str, index: int) -> None:
        self._here(payload)
        assert (kind, index) not in self._done
        self._parts[kind, index] += payload["delta"]

    def _check(self, payload: dict[str, Any], kind: str, index: int, text: str) -> None:
        self._here(payload)
        assert self._parts[kind, index] == text

    def _end(self, kind: str, index: int) -> None:
        assert (kind, index) not in self._done
        self._done.add((kind, index))

    def _texts(self, kind: str) -> list[str]:
        return [text for (known, _), text in self._parts.items() if known == kind]


class ReadChoice:
    """One choice of a chat stream, as a client adds it up."""

    def __init__(self) -> None:
        self.content = self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.function_call: dict[str, str] | None = None
        self.finish_reason: str | None = None

    def add(self, choice: dict[str, Any]) -> None:
        """Take one piece in."""
        assert self.finish_reason is None
        self.finish_reason = choice["finish_reason"]
        delta = choice["delta"]
        self.content += delta.get("content", "")
        self.reasoning += delta.get("reasoning_content", "")
        for part in delta.get("tool_calls", ()):
            self._call(part)
        if "function_call" in delta:
            self.function_call = self.function_call or {"name": "", "arguments": ""}
            for name, value in delta["function_call"].items():
                self.function_call[name] += value

    def _call(self, part: dict[str, Any]) -> None:
        kind = "custom" if "custom" in part else "function"
        member = {"custom": "input", "function": "arguments"}[kind]
        if part["index"] == len(self.calls):
            assert part["type"] == kind
            self.calls.append({"id": part["id"], "type": kind, kind: {"name": part[kind]["name"], member: ""}})
        else:
            assert part["index"] == len(self.calls) - 1
            assert part.keys() == {"index", kind}
        self.calls[-1][kind][member] += part[kind][member]


class ReadChat:
    """A client's view of a chat stream.

    For each choice the role first and once, calls that add up by their index, one finish reason; then the usage where
    it was asked for, or the one error; `[DONE]` at the end of all.
    """

    def __init__(self, stream: bytes, choices: int = 1) -> None:
        assert stream.endswith(DONE)
        assert stream.count(b"\n\n" + DONE) == 1
        self.choices = [ReadChoice() for _ in range(choices)]
        self.usage: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        payloads = read_frames(stream)
        for number, payload in enumerate(payloads):
            assert self.error is None
            assert self.usage is None
            if "error" in payload:
                self.error = payload["error"]
                continue
            check_chunk(payload)
            assert (payload["id"], payload["model"]) == (payloads[0]["id"], "mock-text")
            if payload["choices"]:
                (choice,) = payload["choices"]
                assert ("role" in choice["delta"]) == (number < choices)
                self.choices[choice["index"]].add(choice)
            else:
                assert all(choice.finish_reason for choice in self.choices)
                self.usage = payload["usage"]
        roles = [payload["choices"][0] for payload in payloads[:choices]]
        assert [choice["index"] for choice in roles] == list(range(choices))
        assert all(choice["delta"] == {"role": "assistant", "content": ""} for choice in roles)

    @property
    def only(self) -> ReadChoice:
        """The choice, where there is but one."""
        (choice,) = self.choices
        return choice


class ReadMessage:
    """A client's view of a Messages stream: `message_start` and `ping`, blocks one after the other, and one end.

    `cut` has the calls that were not ended; the input of a call is what its pieces add up to.
    """

    def __init__(self, stream: bytes) -> None:
        self.content: list[dict[str, Any]] = []
        self.cut: list[dict[str, Any]] = []
        self.end: dict[str, Any] = {}
        self.usage: dict[str, Any] = {}
        self.error: dict[str, Any] | None = None
        self._open: dict[str, Any] | None = None
        self._pieces = ""
        first, ping, *others = read_frames(stream)
        check_message_event(first)
        assert first["message"]["content"] == []
        assert ping == {"type": "ping"}
        assert [first["type"], others[-1]["type"]] in (["message_start", "message_stop"], ["message_start", "error"])
        for payload in others[:-1]:
            check_message_event(payload)
            getattr(self, payload["type"])(payload)
        if others[-1]["type"] == "error":
            self.error = others[-1]["error"]
            self._cut()
        else:
            assert self._open is None
            assert self.end

    def content_block_start(self, payload: dict[str, Any]) -> None:
        self._cut()
        assert not self.end
        assert payload["index"] == len(self.content)
        self._open, self._pieces = payload["content_block"], ""
        self.content.append(self._open)

    def content_block_delta(self, payload: dict[str, Any]) -> None:
        assert self._open is not None
        assert payload["index"] == len(self.content) - 1
        delta = payload["delta"]
        for name in ("text", "thinking"):
            if name in delta:
                self._open[name] += delta[name]
        if "signature" in delta:
            assert self._open["signature"] == ""
            self._open["signature"] = delta["signature"]
        self._pieces += delta.get("partial_json", "")

    def content_block_stop(self, payload: dict[str, Any]) -> None:
        assert self._open is not None
        assert payload["index"] == len(self.content) - 1
        assert self._open.get("text") != ""
        if "input" in self._open:
            self._open["input"] = message_input(self._pieces)
        self._open = None

    def message_delta(self, payload: dict[str, Any]) -> None:
        self._cut()
        assert not self.end
        self.end, self.usage = payload["delta"], payload["usage"]
        assert self.end["stop_reason"] is not None

    def _cut(self) -> None:
        if self._open is not None and self._open["type"] == "tool_use":
            self.cut.append(self._open)
        self._open = None
