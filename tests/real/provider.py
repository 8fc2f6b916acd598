"""A scripted Responses API on the loopback, for running the real Codex without an account.

A test says in the prompt itself what the model is to do: JSON between ``@@`` marks, written by `script()`.

    with Provider() as provider:
        home = codex_home(tmp_path / "home", provider)
        ask("please " + script({"do": "text", "pieces": ["a", "b"]}))

So one provider serves any number of conversations at once, each with its own script, and a retried request
finds its script again. A prompt without a script is answered with `DEFAULT_TEXT`.

    do          what happens                                 keys and their defaults
    text        the answer                                   pieces=[DEFAULT_TEXT] chunk delay usage
    reasoning   thoughts, then the answer                    summary=["thinking"] raw="" + those of text
    no_deltas   the answer only as a finished item           pieces usage
    empty       completed, without any output                usage
    slow        n words spread over some seconds             n=20 seconds=10 usage
    hang        created, then silence till the client goes
    incomplete  the answer, then response.incomplete         reason="max_output_tokens" + those of text
    failed      response.failed                              code="server_error" message
    error       an HTTP error                                status=500 code message retry_after times
    drop        n words, then the connection is closed       n=3 chunk delay times calls then
    calls       a text, function calls; later its outputs    calls=[{"name", "arguments"}] then + those of text
    search      a web search, then the answer                query="weather" + those of text
    recall      all messages that were sent, as JSON         those of text

``calls`` makes native calls of the tools that the request offers, and writes `<tool_call>` blocks for those that it
does not. Once the outputs of all its calls have come, the action ``then`` follows; without one the answer is
"result: " and the outputs. With ``summary`` or ``raw`` thoughts come before the calls. ``headers`` (any action that
streams) are sent with the answer.

``chunk`` cuts the text anew, so many characters per delta; ``delay`` is in seconds, before each delta;
``usage`` has any of the keys of `USAGE`, and `written` (to the cache). With ``times`` only so many requests with the
same script meet the trouble, and later ones are answered with "recovered", or by the action ``then``. A ``drop`` with
``calls`` makes these instead of its words.

To see an interrupt arrive, prefer `slow` to `hang`: Codex 0.163 closes the connection at once, but 0.107
does so only when the next event comes.
"""

import json
import math
import re
import select
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, Self

DEFAULT_TEXT = "hello from the provider"
USAGE = {"input": 11, "cached": 3, "output": 7, "reasoning": 2}

_TEXT = {"pieces", "chunk", "delay", "usage", "headers"}
_KEYS = {
    "text": _TEXT,
    "reasoning": {"summary", "raw", *_TEXT},
    "no_deltas": {"pieces", "usage"},
    "empty": {"usage"},
    "slow": {"n", "seconds", "usage"},
    "hang": set(),
    "incomplete": {"reason", *_TEXT},
    "failed": {"code", "message"},
    "error": {"status", "code", "message", "detail", "retry_after", "times"},
    "drop": {"n", "chunk", "delay", "times", "calls", "then"},
    "calls": {"calls", "then", "summary", "raw", *_TEXT},
    "search": {"query", *_TEXT},
    "recall": _TEXT,
}
# qwen-code reads "@" as the mark of a file name, and puts a space before the second mark.
_MARK = re.compile(r"@@(\{.*?\}) ?@@", re.DOTALL)

Json = dict[str, Any]


# The script: JSON in the prompt


def script(action: Json) -> str:
    """The text to put into a prompt. Raises ValueError for an action that the provider does not know."""
    _check(action)
    # "@" occurs in JSON only inside strings, so a text that holds the mark itself can be escaped.
    return "@@" + json.dumps(action).replace("@@", r"@\u0040") + "@@"


def find_script(body: Json) -> tuple[str, list[str]] | None:
    """The last script of the latest user message (or tool result) that has one, and the tool results after it."""
    items = body.get("input") or []
    outputs: list[str] = []
    for item in reversed([{"role": "user", "content": items}] if isinstance(items, str) else items):
        said = item.get("content") if item.get("role") == "user" else item.get("output")
        if found := _MARK.findall(_text_of(said)):
            return str(found[-1]), outputs[::-1]
        if str(item.get("type")).endswith("_call_output"):
            outputs.append(_text_of(said))
    return None


def next_step(action: Json, outputs: list[str]) -> Json:
    """What a script of calls does now that these outputs have come."""
    while action["do"] == "calls" and len(outputs) >= len(action["calls"]):
        done, outputs = outputs[: len(action["calls"])], outputs[len(action["calls"]) :]
        action = action.get("then") or {"do": "text", "pieces": ["result: " + "; ".join(done)]}
    return action


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _check(action: Json) -> None:
    known = _KEYS.get(action.get("do", ""))
    if known is None:
        raise ValueError(f"no such action: {action!r}; there are {', '.join(_KEYS)}")
    if unknown := action.keys() - known - {"do"}:
        raise ValueError(f"{action['do']!r} takes no {', '.join(sorted(unknown))}")
    if unknown := action.get("usage", {}).keys() - {*USAGE, "written"}:
        raise ValueError(f"usage has no {', '.join(sorted(unknown))}")
    if action.get("then"):
        _check(action["then"])


# The answer: events to send and seconds to wait, without any I/O


@dataclass(frozen=True)
class Wait:
    """A silence in the stream."""

    seconds: float


def answer(action: Json, tag: str, body: Json) -> Iterator[Json | Wait]:
    """One response stream; `tag` makes its ids unique. Without a final event it is a dropped one."""
    yield _response("created", tag, "in_progress")
    output = []
    for event in _items(action, tag, body):
        if isinstance(event, dict) and event["type"] == "response.output_item.done":
            output.append(event["item"])
        yield event
    closing = {"output": output, "usage": _usage(action.get("usage", {}))}
    match action["do"]:
        case "drop":
            pass
        case "failed":
            code = action.get("code", "server_error")
            error = {"code": code, "message": action.get("message", f"scripted failure: {code}")}
            yield _response("failed", tag, "failed", error=error)
        case "incomplete":
            details = {"reason": action.get("reason", "max_output_tokens")}
            yield _response("incomplete", tag, "incomplete", incomplete_details=details, **closing)
        case _:
            yield _response("completed", tag, "completed", **closing)


def _items(action: Json, tag: str, body: Json) -> Iterator[Json | Wait]:
    pieces, delay = action.get("pieces", [DEFAULT_TEXT]), action.get("delay", 0)
    match action["do"]:
        case "hang":
            yield Wait(math.inf)
        case "text" | "incomplete":
            yield from _message(tag, 0, _cut(pieces, action), delay)
        case "reasoning":
            yield from _reasoning(tag, action)
            yield from _message(tag, 1, _cut(pieces, action), delay)
        case "no_deltas":
            yield _event("output_item.done", output_index=0, item=_message_item(tag, "".join(pieces)))
        case "slow":
            n = action.get("n", 20)
            yield from _message(tag, 0, _words(n), action.get("seconds", 10) / n)
        case "calls" if "summary" in action or "raw" in action:
            yield from _reasoning(tag, action)
            yield from _calls(tag, action, offered_tools(body), index=1)
        case "calls":
            yield from _calls(tag, action, offered_tools(body))
        case "search":
            yield from _search(tag, action)
            yield from _message(tag, 1, _cut(pieces, action), delay)
        case "recall":
            said = [[item["role"], _text_of(item["content"])] for item in body["input"] if item.get("role")]
            yield from _message(tag, 0, _cut([json.dumps(said, ensure_ascii=False)], action), delay)
        case "drop" if action.get("calls"):
            yield from _calls(tag, action, offered_tools(body))
        case "drop":
            for event in _message(tag, 0, _cut(_words(action.get("n", 3)), action), delay):
                if isinstance(event, dict) and event["type"] == "response.output_text.done":
                    break
                yield event


def _words(n: int) -> list[str]:
    return [f"word{i} " for i in range(n)]


def _cut(pieces: list[str], action: Json) -> list[str]:
    if "chunk" not in action:
        return pieces
    text, size = "".join(pieces), action["chunk"]
    return [text[i : i + size] for i in range(0, len(text), size)]


def _event(kind: str, **fields: Any) -> Json:
    return {"type": f"response.{kind}", **fields}


def _response(kind: str, tag: str, status: str, **fields: Any) -> Json:
    return _event(kind, response={"id": f"resp_{tag}", "object": "response", "status": status, **fields})


def _deltas(kind: str, pieces: list[str], delay: float, **where: Any) -> Iterator[Json | Wait]:
    for piece in pieces:
        if delay:
            yield Wait(delay)
        yield _event(f"{kind}.delta", **where, delta=piece)
    yield _event(f"{kind}.done", **where, text="".join(pieces))


def _message(tag: str, index: int, pieces: list[str], delay: float) -> Iterator[Json | Wait]:
    item = _message_item(tag, "".join(pieces))
    where = {"item_id": item["id"], "output_index": index, "content_index": 0}
    begun = {**item, "status": "in_progress", "content": []}
    yield _event("output_item.added", output_index=index, item=begun)
    yield _event("content_part.added", **where, part={"type": "output_text", "text": "", "annotations": []})
    yield from _deltas("output_text", pieces, delay, **where)
    yield _event("content_part.done", **where, part=item["content"][0])
    yield _event("output_item.done", output_index=index, item=item)


def _message_item(tag: str, text: str) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "type": "message",
        "id": f"msg_{tag}",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }


def _reasoning(tag: str, action: Json) -> Iterator[Json | Wait]:
    raw, delay = action.get("raw", ""), action.get("delay", 0)
    summary = [{"type": "summary_text", "text": text} for text in action.get("summary", ["thinking"])]
    item: Json = {"type": "reasoning", "id": f"rs_{tag}", "summary": summary, "encrypted_content": "c2VjcmV0"}
    yield _event("output_item.added", output_index=0, item={**item, "summary": []})
    where = {"item_id": item["id"], "output_index": 0}
    for at, part in enumerate(summary):
        here = {**where, "summary_index": at}
        yield _event("reasoning_summary_part.added", **here, part={**part, "text": ""})
        yield from _deltas("reasoning_summary_text", _cut([part["text"]], action), delay, **here)
        yield _event("reasoning_summary_part.done", **here, part=part)
    if raw:
        yield from _deltas("reasoning_text", _cut([raw], action), delay, **where, content_index=0)
        item["content"] = [{"type": "reasoning_text", "text": raw}]
    yield _event("output_item.done", output_index=0, item=item)


def offered_tools(body: Json) -> dict[str, Json]:
    """The tools of a request by their names, those in namespaces too."""
    tools: dict[str, Json] = {}
    for tool in body.get("tools") or ():
        for each in tool["tools"] if tool.get("type") == "namespace" else [tool]:
            tools[each.get("name", each["type"])] = each
    return tools


def _calls(tag: str, action: Json, tools: dict[str, Json], index: int = 0) -> Iterator[Json | Wait]:
    text, delay = "".join(action.get("pieces", [])), action.get("delay", 0)
    native = [(call, _offered(call["name"], tools)) for call in action["calls"]]
    for call, name in native:
        if name is None:
            given = {"name": call["name"], "arguments": call.get("arguments", "{}")}
            text += f"<tool_call>{json.dumps(given, ensure_ascii=False)}</tool_call>"
    if text:
        yield from _message(tag, index, _cut([text], action), delay)
        index += 1
    for number, (call, name) in enumerate(native):
        if name is None:
            continue
        arguments = call.get("arguments", "{}")
        item = {"type": "function_call", "id": f"fc_{tag}_{number}", "call_id": f"call_{tag}_{number}", "name": name}
        where = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield _event("output_item.added", output_index=index, item=begun)
        for piece in _cut([arguments], action):
            if delay:
                yield Wait(delay)
            yield _event("function_call_arguments.delta", **where, delta=piece)
        yield _event("function_call_arguments.done", **where, arguments=arguments)
        done = {**item, "arguments": arguments, "status": "completed"}
        yield _event("output_item.done", output_index=index, item=done)
        index += 1


def _offered(name: str, tools: dict[str, Json]) -> str | None:
    """The name that a function is offered under: its own, or one that was made of it."""
    allowed = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    exact = [offered for offered in tools if offered in (name, allowed)]
    return next(iter(exact or [offered for offered in tools if offered.endswith(f"_{allowed}")]), None)


def _search(tag: str, action: Json) -> Iterator[Json | Wait]:
    item = {
        "type": "web_search_call",
        "id": f"ws_{tag}",
        "status": "completed",
        "action": {"type": "search", "query": action.get("query", "weather")},
    }
    yield _event("output_item.added", output_index=0, item={**item, "status": "in_progress"})
    for state in ("in_progress", "searching", "completed"):
        yield _event(f"web_search_call.{state}", item_id=item["id"], output_index=0)
    yield _event("output_item.done", output_index=0, item=item)


def _usage(given: dict[str, int]) -> Json:
    n = {**USAGE, "written": 0, **given}
    return {
        "input_tokens": n["input"],
        "input_tokens_details": {"cached_tokens": n["cached"], "cache_write_tokens": n["written"]},
        "output_tokens": n["output"],
        "output_tokens_details": {"reasoning_tokens": n["reasoning"]},
        "total_tokens": n["input"] + n["output"],
    }


# The server


@dataclass(frozen=True)
class Request:
    """One POST as it arrived; header names in lower case."""

    path: str
    headers: dict[str, str]
    body: Json


class Provider:
    """The server, for as long as the ``with`` block; leaving it cuts whatever streams and joins all threads.

    Its threads change the attributes: read these after one of the `wait_…` methods. Those block, so from
    trio ``await trio.to_thread.run_sync(provider.wait_requests, 1)``.
    """

    requests: list[Request]
    "Every POST, in order of arrival."
    gone: list[int]
    "Indices of the requests whose client hung up before the end of the answer."
    active: int
    "How many requests are being answered now."

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests, self.gone, self.active = [], [], 0
        self.changed = threading.Condition()
        self._seen: Counter[str] = Counter()
        self._server = _Server(self)
        if tls is not None:  # the thread of a connection does its handshake, at its first read
            self._server.socket = tls.wrap_socket(self._server.socket, True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="provider")
        self.port = self._server.server_address[1]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"

    def __repr__(self) -> str:
        return f"<Provider requests={len(self.requests)} active={self.active} gone={self.gone}>"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()  # joins the threads of the requests

    def wait_for(self, predicate: Callable[[], bool], timeout: float = 30) -> None:
        """Block until the predicate holds; raises AssertionError with the state if it never does."""
        with self.changed:
            assert self.changed.wait_for(predicate, timeout), f"not within {timeout} s: {self!r}"

    def wait_requests(self, n: int, timeout: float = 30) -> list[Request]:
        """Block until n requests have arrived; all that have, then."""
        self.wait_for(lambda: len(self.requests) >= n, timeout)
        return self.requests

    def wait_gone(self, n: int = 1, timeout: float = 30) -> list[int]:
        """Block until n clients have hung up; the indices of their requests."""
        self.wait_for(lambda: len(self.gone) >= n, timeout)
        return self.gone

    def wait_idle(self, timeout: float = 30) -> None:
        """Block until nothing is being answered."""
        self.wait_for(lambda: self.active == 0, timeout)

    def arrived(self, request: Request) -> int:
        """Count a request in; its index."""
        with self.changed:
            self.requests.append(request)
            self.active += 1
            self.changed.notify_all()
            return len(self.requests) - 1

    def left(self, index: int, *, early: bool) -> None:
        """Count a request out."""
        with self.changed:
            self.active -= 1
            if early:
                self.gone.append(index)
            self.changed.notify_all()

    def action_for(self, body: Json) -> Json:
        """What to do now. Raises ValueError for a bad script."""
        found = find_script(body)
        if found is None:
            return {"do": "text"}
        text, outputs = found
        with self.changed:
            self._seen[text] += 1
            seen = self._seen[text]
        action: Json = json.loads(text)
        _check(action)
        if seen > action.get("times", math.inf):
            return next_step(action.get("then") or {"do": "text", "pieces": ["recovered"]}, outputs)
        return next_step(action, outputs)


class _ClientGone(Exception):
    pass


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that server_close() joins them and no socket outlives its test
    request_queue_size = 128

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.closing = False
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Conversation)

    # Connections are noted here and not in their own thread: after shutdown() none can be missing.
    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        self._open.discard(request)
        super().close_request(request)

    def hang_up(self) -> None:
        self.closing = True
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client killed between two requests is no news
            super().handle_error(request, client_address)


class _Conversation(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.headers.get("upgrade"):
            self._json(426, {"error": {"message": "no websockets here", "code": "upgrade_required"}})
        elif self.path.partition("?")[0] == "/v1/models":
            self._json(200, {"object": "list", "data": [], "models": []})
        else:
            self._error(404, f"no such path: {self.path}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        provider = self.server.provider
        index = provider.arrived(Request(self.path, headers, body))
        early = False
        try:
            self._respond(index, body)
        except (_ClientGone, OSError):
            early = not self.server.closing
        finally:
            provider.left(index, early=early)

    def _respond(self, index: int, body: Json) -> None:
        if self.path.partition("?")[0] != "/v1/responses":
            return self._error(404, f"no such path: {self.path}")
        try:
            action = self.server.provider.action_for(body)
        except ValueError as bad:
            return self._error(400, f"bad script: {bad}")
        if action["do"] != "error":
            return self._stream(answer(action, str(index), body), action.get("headers", {}))
        status = action.get("status", 500)
        if "detail" in action:
            return self._json(status, {"detail": action["detail"]})
        wait = {"retry_after": str(action["retry_after"])} if "retry_after" in action else {}
        return self._error(status, action.get("message", f"scripted HTTP {status}"), action.get("code"), **wait)

    def _stream(self, events: Iterator[Json | Wait], headers: dict[str, str]) -> None:
        self._head(200, content_type="text/event-stream", **headers)
        numbers = count()
        for event in events:
            if isinstance(event, Wait):
                self._watch(event.seconds)
            else:
                self._watch(0)
                data = json.dumps({**event, "sequence_number": next(numbers)})
                self.wfile.write(f"event: {event['type']}\ndata: {data}\n\n".encode())

    def _watch(self, seconds: float) -> None:
        """Wait, but no longer than the client: after its request it becomes readable only by leaving."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        if poll.poll(None if math.isinf(seconds) else seconds * 1000):
            raise _ClientGone

    def _error(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
        error = {"message": message, "type": kind, "param": None, "code": code}
        self._json(status, {"error": error}, **headers)

    def _json(self, status: int, payload: Json, **headers: str) -> None:
        data = json.dumps(payload).encode()
        self._head(status, content_type="application/json", content_length=str(len(data)), **headers)
        self.wfile.write(data)

    def _head(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("connection", "close")
        self.end_headers()


# Codex's side


def codex_home(path: Path, provider: Provider, *, model: str = "gpt-5.2", retries: int = 0, extra: str = "") -> Path:
    """Make a CODEX_HOME that sends every turn to the provider.

    `extra` is TOML: top-level keys, then tables, but not [features].
    """
    path.mkdir(parents=True, exist_ok=True)
    # Without plugins = false Codex 0.163 looks for the internet.
    (path / "config.toml").write_text(
        f"""\
model = {json.dumps(model)}
model_provider = "scripted"
{extra}

[model_providers.scripted]
name = "scripted"
base_url = "{provider.base_url}"
wire_api = "responses"
request_max_retries = {retries}
stream_max_retries = {retries}

[features]
plugins = false
"""
    )
    return path
