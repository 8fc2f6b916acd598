"""The turns of CAP that run or have just ended, by their clients and the ids of their requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import trio

from bridge.api.cap.envelope import ServiceRequest
from bridge.api.cap.events import Form
from bridge.errors import InvalidRequest, NotReady
from bridge.server.cap.exchange import AssistExchange
from bridge.server.cap.live import Expired, LiveAssist
from bridge.server.service import Service

KEPT_STREAMS = 1024
KEPT_BYTES = 64 * 1024 * 1024
"""How much of turns that are over is kept for whoever comes back."""


_Name = tuple[str, UUID]


class Assists:
    """One client cannot see another's: a client is known by the label of its key."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._running: dict[_Name, LiveAssist] = {}
        self._kept: OrderedDict[_Name, LiveAssist] = OrderedDict()
        """What is over, in the order of its ends."""
        self._size = 0
        self._busy: set[tuple[str, str]] = set()
        self._attempts: OrderedDict[_Name, int] = OrderedDict()
        """How many turns have told something for a request, of those that came last."""

    def find(self, key: str, request_id: UUID) -> LiveAssist:
        """The turn of a request that runs or is still kept. Raises Expired when there is none."""
        live = self._find((key, request_id))
        if live is None:
            raise Expired("There is no such request, or it has been over for too long: send it anew.")
        return live

    def same(self, key: str, request: ServiceRequest) -> LiveAssist | None:
        """The turn of this very request, to be joined; None when it is to be begun, or tried again after a failure.

        Raises InvalidRequest when its id belongs to another request.
        """
        live = self._find((key, request.request_id))
        if live is None:
            return None
        if live.fingerprint != request.compute_hash():
            raise InvalidRequest(
                "Another request has this 'request_id': make a new one for each request.",
                param="request_id",
                code="request_id_conflict",
                http_status=409,
            )
        return None if live.failed else live

    def start(
        self,
        key: str,
        url: str,
        request: ServiceRequest,
        data: Mapping[str, Any],
        form: Form,
        provider_key: str | None,
    ) -> LiveAssist:
        """A new turn; the caller takes a reader before it waits for anything."""
        service = self._service
        if service.background is None:
            raise NotReady("The bridge is shutting down.", code="shutdown_initiated", retry_after=5)
        name = (key, request.request_id)
        self._forget(name)
        exchange = AssistExchange(service, key, url, request, data, form, self._busy)
        exchange.provider_key = provider_key
        exchange.arrived({"body": data, "form": form})
        # What is played has the ids that it had.
        attempt = 1 if service.forgiving else self._count(name)
        live = self._running[name] = LiveAssist(exchange, grace=service.cap.grace, attempt=attempt)
        service.background.start_soon(self._run, name, live)
        return live

    async def _run(self, name: _Name, live: LiveAssist) -> None:
        try:
            await live.run()
        finally:
            # One that has failed may have been begun anew before it was quite over.
            if self._running.get(name) is live:
                del self._running[name]
                self._note(name, live)
                if live.refused is None and not live.left:
                    self._kept[name] = live
                    self._size += live.ring.size

    def _count(self, name: _Name) -> int:
        """The number of a new turn, which nobody can take for one that was told before."""
        before = self._running.get(name)
        if before is not None:
            self._note(name, before)
        return self._attempts.get(name, 0) + 1

    def _note(self, name: _Name, live: LiveAssist) -> None:
        if live.ring.last and live.failed:
            self._attempts[name] = live.attempt
            self._attempts.move_to_end(name)
            if len(self._attempts) > KEPT_STREAMS:
                self._attempts.popitem(last=False)

    def _find(self, name: _Name) -> LiveAssist | None:
        limit = trio.current_time() - self._service.cap.grace
        while self._kept:
            oldest = next(iter(self._kept))
            is_late = self._kept[oldest].ended_at <= limit
            if not is_late and len(self._kept) <= KEPT_STREAMS and self._size <= KEPT_BYTES:
                break
            self._forget(oldest)
        return self._running.get(name) or self._kept.get(name)

    def _forget(self, name: _Name) -> None:
        live = self._kept.pop(name, None)
        if live is not None:
            self._size -= live.ring.size
