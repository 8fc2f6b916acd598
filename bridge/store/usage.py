"""Usage added up by day, key and model. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from bridge.store.base import USAGE_DAYS, UsageRow

UsageKey = tuple[str, str, str]


def usage_key(row: UsageRow) -> UsageKey:
    """What a row is found by, and sorted."""
    return row.day, row.key, row.model


def oldest_day(now: float) -> str:
    """The first day whose usage is still kept."""
    day = datetime.datetime.fromtimestamp(now, datetime.UTC).date() - datetime.timedelta(days=USAGE_DAYS)
    return day.isoformat()


class UsageTable:
    """Rows, at most one for each day, key and model."""

    def __init__(self, rows: Iterable[UsageRow] = ()) -> None:
        self._rows: dict[UsageKey, UsageRow] = {}
        for row in rows:
            self.add(row)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: UsageRow, sign: int = 1) -> None:
        """Add what a row counts, or with -1 take it away again; a row that counts nothing is none."""
        key = usage_key(row)
        old = self._rows.get(key, UsageRow(*key, 0, 0, 0, 0, 0, 0))
        new = UsageRow(
            *key,
            old.requests + sign * row.requests,
            old.failed + sign * row.failed,
            old.input + sign * row.input,
            old.cached + sign * row.cached,
            old.output + sign * row.output,
            old.reasoning + sign * row.reasoning,
        )
        if new.requests or new.failed or new.input or new.cached or new.output or new.reasoning:
            self._rows[key] = new
        else:
            self._rows.pop(key, None)

    def rows(self, since: str = "") -> list[UsageRow]:
        """The rows from that day on, sorted."""
        return sorted((row for row in self._rows.values() if row.day >= since), key=usage_key)

    def forget(self, before: str) -> None:
        """Drop the rows of earlier days."""
        if any(key[0] < before for key in self._rows):
            self._rows = {key: row for key, row in self._rows.items() if key[0] >= before}
