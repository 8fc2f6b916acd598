"""The turns that the page shows: those in the ring, and those that only the event log still has."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import trio

from bridge.errors import ConfigError, InvalidRequest
from bridge.log.export import ExportedTurn, records_of, summary_of
from bridge.log.export.html import list_row, summary_row
from bridge.log.filters import Filters
from bridge.log.log import Log
from bridge.log.recording import Recording
from bridge.log.summary import Summary
from bridge.page.conversation import logged_neighbours, neighbours
from bridge.page.history import cost_text
from bridge.page.records import RecordMaker, brief_recording, iso_time, read_back
from bridge.page.ring import HeldTurn, Ring
from bridge.playback.recorded import spoken_at
from bridge.threads import in_thread

MAX_LISTED = 1000
AT_ONCE = 128 * 1024
"""Bytes that are read in the event loop; more is read in a thread."""

Row = dict[str, Any]


@dataclass
class Opened:
    """A turn as it is shown: its row, and all of it."""

    row: Row
    recording: Recording

    @cached_property
    def exported(self) -> ExportedTurn:
        """Takes long for a large turn: to be called in a thread."""
        return ExportedTurn(self.recording)


@dataclass(slots=True)
class Turns:
    """All of them. `keys` are secrets that must never be shown; `cache` is the directory of the log's index."""

    ring: Ring | None
    log: Path | None
    cache: Path | None = None
    keys: tuple[str, ...] = field(default=(), repr=False)
    faults: Sequence[str] = ()
    """What is wrong with the log, as far as it has been listed."""
    _last: tuple[tuple[object, ...], Opened] | None = field(default=None, repr=False)
    """The turn in the ring that was opened last, and in which state it was."""

    # Rows

    async def row(self, turn: HeldTurn) -> Row:
        """The row of a turn in the ring."""
        if turn.row is None:
            if turn.base is None:
                small = turn.size <= AT_ONCE
                turn.base = self._base(turn) if small else await in_thread(self._base, turn)
            row = list_row(ExportedTurn(brief_recording(turn, self.keys, request=False)))
            start, end, facts = turn.start or {}, turn.end or {}, turn.facts
            if facts is not None and facts.first is not None:
                row["first_event_s"] = round(facts.first - facts.arrived, 6)
            if facts is not None and not row["calls"]:
                row["calls"] = [call.name for call in facts.calls]
            turn.row = (
                row
                | turn.base
                | {
                    "model": start.get("model") or turn.base["model"] or "?",
                    "running": turn.running,
                    "key": turn.key,
                    "protocol": turn.protocol,
                    "backend": start.get("backend") or "",
                    "cost": cost_text(end.get("cost"), end.get("currency") or ""),
                }
            )
        return turn.row

    def _base(self, turn: HeldTurn) -> Row:
        """What a row has from the request."""
        brief = ExportedTurn(brief_recording(turn, self.keys, request=True))
        row = list_row(brief)
        return {name: row[name] for name in ("path", "ts", "preview")} | {"model": brief.summary.requested_model}

    async def listed(
        self, label: str | None, filters: Filters, before: str | None, limit: int
    ) -> tuple[list[Row], str | None]:
        """(rows, the cursor of the next ones or None): running turns first, then the newest.

        `label` is the key whose turns are listed, None for all. The event log does not name keys: its turns are only
        in the list of all.
        """
        bound = _position(before)
        rows: list[Row] = []
        held: set[str] = set()
        if self.ring is not None:
            mine = [turn for turn in self.ring.turns.values() if label is None or turn.key == label]
            held = {turn.id for turn in mine}
            for turn in sorted(mine, key=lambda turn: (turn.running, turn.time, turn.id), reverse=True):
                if len(rows) > limit:
                    break
                await trio.lowlevel.checkpoint()  # a row takes a third of a millisecond
                position = (not turn.running, iso_time(turn.time), turn.id)
                if (bound is None or _is_after(position, bound)) and await self._accepts(filters, turn):
                    rows.append(await self.row(turn))
        if self.log is not None and label is None and len(rows) <= limit:
            since = bound if bound is not None and bound[0] else None
            wanted = limit + 1 - len(rows)
            rows += await in_thread(self._logged, filters, since, held, wanted, abandon_on_cancel=True)
        last = rows[limit - 1] if len(rows) > limit else None
        return rows[:limit], None if last is None else f"{int(not last['running'])}~{last['ts']}~{last['id']}"

    async def _accepts(self, filters: Filters, turn: HeldTurn) -> bool:
        if filters.are_none:
            return True
        row = await self.row(turn)
        summary = summary_of(brief_recording(turn, self.keys, request=False))
        summary.path, summary.time = row["path"], row["ts"]
        summary.model, summary.requested_model = row["model"], summary.requested_model or row["model"]
        summary.calls = row["calls"]
        if filters.grep is None:
            return filters.accepts(summary, lambda _: ())
        maker = RecordMaker(turn, self.keys)
        news = maker.visit()
        found = partial(filters.accepts, summary, lambda _: records_of(_whole(maker, news)))
        return found() if turn.size <= AT_ONCE else await in_thread(found, abandon_on_cancel=True)

    def _logged(self, filters: Filters, since: tuple[bool, str, str] | None, held: set[str], limit: int) -> list[Row]:
        """Rows from the event log, the newest first."""
        try:
            log = self._open()
        except ConfigError:
            return []  # it has been moved away

        def wanted() -> Iterator[Summary]:
            for summary in log.summaries(filters.wants_id):
                if summary.id in held or (since is not None and (summary.time, summary.id) >= since[1:]):
                    continue
                if summary.outcome == "unfinished" and held:
                    continue  # it runs, or began before this bridge
                if filters.are_none or filters.accepts(summary, log.records):
                    yield summary

        latest = heapq.nlargest(limit, wanted(), key=lambda summary: (summary.time, summary.id))
        self.faults = log.trouble.sentences()
        return [_logged_row(log, summary) for summary in latest]

    def _open(self) -> Log:
        assert self.log is not None
        return Log(self.log, self.cache)

    # One turn

    def held(self, name: str, label: str | None) -> HeldTurn | None:
        """A turn in the ring, if the key may see it."""
        turn = self.ring.turns.get(name) if self.ring is not None else None
        return turn if turn is not None and (label is None or turn.key == label) else None

    async def find(self, name: str, label: str | None) -> Opened:
        """A turn with its row. Raises InvalidRequest if there is none that the key may see."""
        if (turn := self.held(name, label)) is not None:
            return await self._open_held(turn, label)
        found = None
        if self.log is not None and label is None:
            found = await in_thread(self._find_logged, name, abandon_on_cancel=True)
        if found is None:
            raise InvalidRequest(
                f"Unknown turn {name[:80]!r}. It may have been dropped from the memory of recent turns "
                "(PROXY_PAGE_MEMORY); an event log keeps all (--log-events).",
                code="turn_not_found",
                http_status=404,
            )
        return found

    async def _open_held(self, turn: HeldTurn, label: str | None) -> Opened:
        """A turn in the ring. The one that was opened last is kept: its messages are asked for next."""
        row = await self.row(turn)
        state = (turn, label is None, turn.end is None, turn.exit is None, turn.dropped + len(turn.entries))
        if self._last is None or self._last[0] != state:
            maker = RecordMaker(turn, self.keys)
            recording = await in_thread(_whole, maker, maker.visit())
            opened = Opened(row, recording if label is None else clients_side(recording))
            if turn.running:
                return opened
            self._last = state, opened
        self._last[1].row = row
        return self._last[1]

    async def neighbours(self, name: str, label: str | None) -> dict[str, Any]:
        """The turns before and after this one in its conversation. For one in the log that may take a while."""
        if (turn := self.held(name, label)) is not None and self.ring is not None:
            return neighbours(self.ring, turn)
        opened = await self.find(name, label)
        return await in_thread(lambda: logged_neighbours(self._open(), opened.exported), abandon_on_cancel=True)

    def _find_logged(self, name: str) -> Opened | None:
        try:
            log = self._open()
        except ConfigError:
            return None
        found = list(log.summaries(lambda each: each == name))
        if not found:
            return None
        summary = found[-1]
        return Opened(_logged_row(log, summary), read_back(name, chain([log.header(summary)], log.records(summary))))


def clients_side(recording: Recording) -> Recording:
    """What a client may know of its own turn: not what passed between the bridge and the backend, nor why a child
    ended. That may name paths, hosts and other settings of the operator.
    """
    return replace(recording, attempts={}, exit=None)


def _whole(maker: RecordMaker, news: Any) -> Recording:
    return read_back(maker.turn.id, maker.records(news))


def _logged_row(log: Log, summary: Summary) -> Row:
    request = log.request(summary)
    body = request.get("body") if request is not None else None
    return summary_row(summary, body if isinstance(body, dict) else None) | {
        "running": False,
        "key": "",
        "protocol": spoken_at(summary.path) or "",
        "backend": summary.backend,
        "cost": cost_text(summary.cost, summary.currency or ""),
    }


def _position(cursor: str | None) -> tuple[bool, str, str] | None:
    """(whether the turn has ended, when it arrived, its id) of the last turn that a cursor's page showed."""
    if cursor is None:
        return None
    ended, _, rest = cursor.partition("~")
    time, found, name = rest.partition("~")
    if ended not in ("0", "1") or not found:
        raise InvalidRequest("'before' is not a cursor: use `next` of the last answer.", param="before")
    return ended == "1", time, name


def _is_after(position: tuple[bool, str, str], bound: tuple[bool, str, str]) -> bool:
    """Whether a turn comes after another one in the list."""
    return position[0] > bound[0] or (position[0] == bound[0] and position[1:] < bound[1:])
