"""The page of a running bridge or of a recording: what it is made of, and its routes."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from bridge import __version__
from bridge.errors import ConfigError, Forbidden, InvalidRequest, Unauthorized, UsageError
from bridge.exact_json import safe_dumps
from bridge.http.pages import Page, PageRequest, json_page, query_number
from bridge.http.request import Handler, Request, Route
from bridge.log.case import case_yaml
from bridge.log.export import ExportedTurn, har_pieces, jsonl_row
from bridge.log.export.html import PageTurns, conversation_block, page_pieces, wire_block
from bridge.log.filters import Filters, parse_filters
from bridge.log.recording import Recording
from bridge.page.answers import NOT_STORED, guarded, members_of, send_file, send_start, shows, streams
from bridge.page.conversation import injected_text, neighbours, stderr_of
from bridge.page.live import Visitor, Watcher, Watchers, follow, sse
from bridge.page.ring import HeldTurn
from bridge.page.sessions import OPERATOR, Sessions
from bridge.page.turns import MAX_LISTED, Turns
from bridge.threads import in_thread

V = TypeVar("V", bound=Visitor)
Overview = Callable[[int, str | None], Awaitable[dict[str, Any]]]
Send = Callable[[str, dict[str, Any], str, str | None], str]
Cancel = Callable[[str], bool]

MAX_SMALL_BODY = 16 * 1024
MAX_CUT = 999_999_999
"""Characters of a text; none is longer."""
MAX_DEPTH = 200
"""Of a value whose texts are cut. What is deeper stays as it is."""
MARK = "[redacted:"
"""How a removed secret begins."""
_FILTERS = ("model", "outcome", "since", "until", "tool", "path", "grep", "req")


@dataclass(slots=True)
class Site:
    """What is shown. `name` is what the page calls its source, `notes` what its reader should know."""

    turns: Turns
    sessions: Sessions
    watchers: Watchers
    name: str
    live: bool
    notes: Sequence[str] = ()
    overview: Overview | None = None
    """What the bridge is doing: of the last hours, for a key or for the operator. A recording has none."""
    send: Send | None = None
    """Sends a request again: its path and body, as a key. Returns the id of the new turn."""
    cancel: Cancel | None = None
    """Cancels a turn; False if it does not run."""

    def label(self, request: PageRequest) -> str | None:
        """The key whose turns a request may see; None for all."""
        return None if self.sessions.is_operator(request.key) else request.key

    # Sessions

    async def begin(self, request: Request) -> None:
        """POST /page/session."""
        body = members_of(PageRequest("", {}, {}, "", await request.read_body(MAX_SMALL_BODY)))
        token, key = body.get("token"), body.get("key")
        if not isinstance(token, str | None) or not isinstance(key, str | None) or (token is None) == (key is None):
            raise InvalidRequest('Send the token of the printed address, or a key: {"token": …} or {"key": …}.')
        cookie = await self.sessions.begin(token=token, key=key)
        self.sessions.end(request)  # what the browser had before, or what another program on this host gave it
        await _send_cookie(request, cookie)

    async def end(self, request: Request) -> None:
        """DELETE /page/session."""
        await _send_cookie(request, self.sessions.end(request))

    # What there is

    async def about(self, request: PageRequest) -> Page:
        """GET /page/api/about."""
        return _page(
            {
                "program": f"turnbridge {__version__}",
                "operator": self.label(request) is None,
                "key": request.key,
                "live": self.live,
                "source": self.name,
                "notes": [*self.notes, *self.turns.faults],
            }
        )

    async def listed(self, request: PageRequest) -> Page:
        """GET /page/api/turns."""
        filters = read_filters(request)
        limit = query_number(request.query, "limit", default=100, largest=MAX_LISTED)
        rows, after = await self.turns.listed(self.label(request), filters, request.query.get("before"), limit)
        return _page({"turns": rows, "next": after})

    async def one(self, request: PageRequest) -> Page:
        """GET /page/api/turns/{id}?cut=CHARACTERS."""
        longest = query_number(request.query, "cut", default=MAX_CUT, largest=MAX_CUT)
        name, label = request.path["id"], self.label(request)
        opened = await self.turns.find(name, label)
        about: dict[str, Any] = {"row": opened.row, "previous": None, "next": None, "thread": None, "left_out": 0}
        if (held := self.turns.held(name, label)) is not None and self.turns.ring is not None:
            about |= neighbours(self.turns.ring, held) | {"left_out": held.left_out}
        return await in_thread(lambda: _page(_conversation(opened.exported, longest) | about))

    async def wire(self, request: PageRequest) -> Page:
        """GET /page/api/turns/{id}/wire?cut=CHARACTERS&only=request."""
        longest = query_number(request.query, "cut", default=MAX_CUT, largest=MAX_CUT)
        opened = await self.turns.find(request.path["id"], self.label(request))
        if request.query.get("only") == "request":
            return await in_thread(lambda: _page({"request": opened.exported.recording.request}))
        return await in_thread(lambda: _page(cut_texts(wire_block(opened.exported.recording), longest)))

    async def beside(self, request: PageRequest) -> Page:
        """GET /page/api/turns/{id}/neighbours."""
        return _page(await self.turns.neighbours(request.path["id"], self.label(request)))

    # What happens now

    async def events(self, request: Request, asked: PageRequest) -> AsyncGenerator[bytes, None]:
        """GET /page/api/events."""
        with self._watching(request, asked, Watcher) as watcher:
            async for batch in watcher.batches(self.turns):
                yield batch

    async def turn_events(self, request: Request, asked: PageRequest) -> AsyncGenerator[bytes, None]:
        """GET /page/api/turns/{id}/events."""
        turn = self.turns.held(asked.path["id"], self.label(asked))
        if turn is None:
            # In the log, or unknown.
            row = (await self.turns.find(asked.path["id"], self.label(asked))).row
            yield sse("start", row) + sse("end", row)
            return
        with self._watching(request, asked, Visitor) as visitor:
            async for batch in follow(turn, self.turns, visitor):
                yield batch

    @contextmanager
    def _watching(self, request: Request, asked: PageRequest, kind: type[V]) -> Iterator[V]:
        """Someone who watches, until their session ends. A request with a key needs none."""
        session = self.sessions.of(request)
        if session is None and self.sessions.named_by(request):
            raise Unauthorized("This session has ended. Enter an API key.", code="invalid_session")
        seconds = math.inf if session is None else self.sessions.seconds_left(session)
        watcher = kind(asked.key, self.label(asked), seconds)
        with self.watchers.having(watcher):
            if session is None:
                yield watcher
                return
            session.on_end.append(watcher.end)
            try:
                yield watcher
            finally:
                session.on_end.remove(watcher.end)

    # What can be done

    async def export(self, request: PageRequest) -> Page:
        """GET /page/api/turns/{id}/export?format=html|har|jsonl."""
        form = request.query.get("format", "html")
        if form not in _EXPORTS:
            raise InvalidRequest("'format' must be html, har or jsonl.", param="format")
        name = request.path["id"]
        opened = await self.turns.find(name, self.label(request))
        make, kind = _EXPORTS[form]
        attachment = f'attachment; filename="{re.sub("[^A-Za-z0-9_.-]", "_", name)[:80]}.{form}"'
        headers = [(b"content-disposition", attachment.encode()), *NOT_STORED]
        return Page(await in_thread(make, opened.recording), 200, headers, kind)

    async def case(self, request: PageRequest) -> Page:
        """POST /page/api/turns/{id}/case."""
        opened = await self.turns.find(request.path["id"], self.label(request))
        try:
            return _page({"yaml": await in_thread(case_yaml, opened.recording)})
        except UsageError as error:
            raise InvalidRequest(f"This request cannot become a case: {error.message}", http_status=422) from None

    async def stop_turn(self, request: PageRequest) -> Page:
        """POST /page/api/turns/{id}/cancel."""
        name = request.path["id"]
        if self.label(request) is not None:
            raise Forbidden("Only the operator can cancel a turn here.")
        if self.cancel is None or not self.cancel(name):
            await self.turns.find(name, None)
            raise InvalidRequest("This turn has ended already.", code="turn_over", http_status=409)
        return Page(b"", 204, NOT_STORED)

    async def send_again(self, request: PageRequest) -> Page:
        """POST /page/api/turns/{id}/send."""
        asked = members_of(request)
        name, label = request.path["id"], self.label(request)
        if self.send is None:
            raise InvalidRequest("A recording sends nothing. Open the page of a running bridge.", http_status=409)
        if request.key == OPERATOR.label:
            raise Forbidden("Sign in with an API key to send requests: they run as this key, with its limits.")
        opened = await self.turns.find(name, label)
        body = new_body(asked, self.turns.held(name, label), opened.recording)
        return _page({"id": self.send(opened.row["path"], body, request.key, asked.get("tool_mode"))})

    async def show_overview(self, request: PageRequest) -> Page:
        """GET /page/api/overview."""
        if self.overview is None:
            raise InvalidRequest("A recording has no overview.", code="not_found", http_status=404)
        hours = query_number(request.query, "hours", default=1, largest=24 * 62)
        return _page(await self.overview(hours, self.label(request)))


def new_body(asked: dict[str, Any], held: HeldTurn | None, recording: Recording) -> dict[str, Any]:
    """The body of a request that is sent again, with what the page has changed. Raises InvalidRequest."""
    unknown = asked.keys() - {"model", "body", "tool_mode"}
    if unknown or not isinstance(asked.get("body", {}), dict) or not isinstance(asked.get("model", ""), str):
        raise InvalidRequest("Send an object with `model` (text), `body` (an object) and `tool_mode`, or some of them.")
    if asked.get("tool_mode") not in (None, "text", "native"):
        raise InvalidRequest("'tool_mode' must be text or native.", param="tool_mode")
    body = asked.get("body")
    if body is None and held is not None:
        body = held.request.get("body")
    elif body is None:
        body = recording.body
        if body is not None and MARK.encode() in safe_dumps(body):
            raise InvalidRequest(
                "Secrets were removed from this request when it was recorded. Edit it, then send it.", http_status=422
            )
    if not isinstance(body, dict):
        raise InvalidRequest("The body of this request is not on record, so it cannot be sent again.", http_status=422)
    return body | ({"model": asked["model"]} if "model" in asked else {})


def routes_of(site: Site, max_body: int) -> list[Route]:
    """The routes of a page. `max_body` is the limit of a request that it sends again."""
    get, post = partial(Route, "GET", tag="Page"), partial(Route, "POST", tag="Page")
    return [
        get("/", guarded(send_start), "page", "The page", needs_key=False),
        get("/page/static/{name}", guarded(send_file), "pageFile", "A file of the page", needs_key=False),
        Route("POST", "/page/session", guarded(site.begin), "beginSession", "Sign in", tag="Page", needs_key=False),
        Route("DELETE", "/page/session", guarded(site.end), "endSession", "Sign out", tag="Page", needs_key=False),
        get("/page/api/about", _shows(site.about), "about", "What is shown, and to whom"),
        get("/page/api/turns", _shows(site.listed), "listTurns", "The turns"),
        get("/page/api/turns/{id}", _shows(site.one), "getTurn", "A turn"),
        get("/page/api/turns/{id}/wire", _shows(site.wire), "getTurnWire", "The messages of a turn"),
        get("/page/api/turns/{id}/neighbours", _shows(site.beside), "getNeighbours", "The turns before and after"),
        get("/page/api/turns/{id}/export", _shows(site.export), "exportTurn", "A turn as a file"),
        post("/page/api/turns/{id}/case", _shows(site.case), "makeCase", "A turn as a case of the laboratory"),
        post("/page/api/turns/{id}/cancel", _shows(site.stop_turn), "cancelTurn", "Cancel a turn"),
        post("/page/api/turns/{id}/send", shows(site.send_again, max_body), "sendTurn", "Send a request again"),
        get("/page/api/overview", _shows(site.show_overview), "overview", "What the bridge is doing"),
        get("/page/api/events", streams(site.events), "watchTurns", "Changes of the list"),
        get("/page/api/turns/{id}/events", streams(site.turn_events), "followTurn", "A turn while it runs"),
    ]


def read_filters(request: PageRequest) -> Filters:
    """The filters of a query, as `turnbridge log ls` reads them. Raises InvalidRequest."""
    given = {name: value for name in _FILTERS if (value := request.query.get(name)) is not None}
    try:
        return parse_filters(datetime.now().astimezone(), **given)
    except ConfigError as error:
        raise InvalidRequest(error.message.replace("--", "")) from None


def _shows(show: Callable[[PageRequest], Any]) -> Handler:
    return shows(show, MAX_SMALL_BODY)


def _page(value: Any) -> Page:
    return json_page(value, headers=NOT_STORED)


async def _send_cookie(request: Request, cookie: str) -> None:
    request.start(204, [(b"set-cookie", cookie.encode()), *NOT_STORED])
    await request.send(b"", last=True)


def _conversation(turn: ExportedTurn, longest: int) -> dict[str, Any]:
    block = conversation_block(turn) | {
        "headers": {"request": None, "answer": turn.recording.headers},
        "instructions": injected_text(turn.recording),
        "stderr": stderr_of(turn.recording),
    }
    return cut_texts(block, longest)


def cut_texts(block: dict[str, Any], longest: int) -> dict[str, Any]:
    """The block with texts of at most this length; its `cut` says whether one was longer.

    A browser takes half a second for a turn of 5 MB, of which people read the beginning.
    """
    was_cut = False

    def cut(value: Any, depth: int) -> Any:
        nonlocal was_cut
        if isinstance(value, str) and len(value) > longest:
            was_cut = True
            return value[:longest]
        if isinstance(value, dict) and depth < MAX_DEPTH:
            return {name: cut(member, depth + 1) for name, member in value.items()}
        if isinstance(value, list | tuple) and depth < MAX_DEPTH:
            return [cut(member, depth + 1) for member in value]
        return value

    return {**cut(block, 0), "cut": was_cut}


def _html(recording: Recording) -> bytes:
    turns = PageTurns()
    turns.take([recording])
    return b"".join(page_pieces(turns, name=recording.id, notes=[]))


_EXPORTS: dict[str, tuple[Callable[[Recording], bytes], bytes]] = {
    "html": (_html, b"text/html; charset=utf-8"),
    "har": (lambda recording: b"".join(har_pieces([recording])), b"application/json"),
    "jsonl": (jsonl_row, b"application/x-ndjson"),
}
"""How a turn is exported, and the type of the file: as `turnbridge log export` does."""
