"""The page of a running bridge or of a recording: what it is made of, and its routes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from bridge import __version__
from bridge.errors import ConfigError, InvalidRequest
from bridge.http.pages import Page, PageRequest, json_page, query_number
from bridge.http.request import Handler, Request
from bridge.http.route import Route
from bridge.log.export.html import conversation_block, wire_block
from bridge.log.export.turn import ExportedTurn
from bridge.log.filters import Filters, parse_filters
from bridge.log.recording import Recording
from bridge.page.answers import NOT_STORED, guarded, members_of, send_file, send_start, shows, streams
from bridge.page.live import Visitor, Watcher, Watchers, follow, sse
from bridge.page.sessions import Sessions
from bridge.page.turns import MAX_LISTED, Turns
from bridge.threads import in_thread

MAX_SMALL_BODY = 16 * 1024
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
        await _send_cookie(request, await self.sessions.begin(token=token, key=key))

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
                "notes": list(self.notes),
            }
        )

    async def listed(self, request: PageRequest) -> Page:
        """GET /page/api/turns."""
        filters = read_filters(request)
        limit = query_number(request.query, "limit", default=100, largest=MAX_LISTED)
        rows, after = await self.turns.listed(self.label(request), filters, request.query.get("before"), limit)
        return _page({"turns": rows, "next": after})

    async def one(self, request: PageRequest) -> Page:
        """GET /page/api/turns/{id}."""
        row, recording = await self.turns.find(request.path["id"], self.label(request))
        held = self.turns.held(request.path["id"], self.label(request))
        block = await in_thread(_conversation, recording)
        return _page(block | {"row": row, "left_out": held.left_out if held is not None else 0})

    async def wire(self, request: PageRequest) -> Page:
        """GET /page/api/turns/{id}/wire."""
        _, recording = await self.turns.find(request.path["id"], self.label(request))
        return _page(await in_thread(_wire, recording))

    # What happens now

    async def events(self, request: PageRequest) -> AsyncGenerator[bytes, None]:
        """GET /page/api/events."""
        watcher = Watcher(request.key, self.label(request))
        with self.watchers.having(watcher):
            async for batch in watcher.batches(self.turns):
                yield batch

    async def turn_events(self, request: PageRequest) -> AsyncGenerator[bytes, None]:
        """GET /page/api/turns/{id}/events."""
        turn = self.turns.held(request.path["id"], self.label(request))
        if turn is None:
            # In the log, or unknown.
            row, _ = await self.turns.find(request.path["id"], self.label(request))
            yield sse("start", row) + sse("end", row)
            return
        visitor = Visitor(request.key)
        with self.watchers.having(visitor):
            async for batch in follow(turn, self.turns, visitor):
                yield batch


def routes_of(site: Site) -> list[Route]:
    """The routes of a page."""
    get = partial(Route, "GET", tag="Page")
    return [
        get("/", guarded(send_start), "page", "The page", needs_key=False),
        get("/page/static/{name}", guarded(send_file), "pageFile", "A file of the page", needs_key=False),
        Route("POST", "/page/session", guarded(site.begin), "beginSession", "Sign in", tag="Page", needs_key=False),
        Route("DELETE", "/page/session", guarded(site.end), "endSession", "Sign out", tag="Page", needs_key=False),
        get("/page/api/about", _shows(site.about), "about", "What is shown, and to whom"),
        get("/page/api/turns", _shows(site.listed), "listTurns", "The turns"),
        get("/page/api/turns/{id}", _shows(site.one), "getTurn", "A turn"),
        get("/page/api/turns/{id}/wire", _shows(site.wire), "getTurnWire", "The messages of a turn"),
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


def _conversation(recording: Recording) -> dict[str, Any]:
    turn = ExportedTurn(recording)
    return conversation_block(turn) | {"headers": {"request": None, "answer": turn.recording.headers}}


def _wire(recording: Recording) -> dict[str, Any]:
    return wire_block(ExportedTurn(recording).recording)
