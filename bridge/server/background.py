"""Responses that go on without their client: stored at once as in progress, and again at their end.

The client polls GET /v1/responses/{id}. What was in progress when the bridge ended is reported as failed.
"""

from __future__ import annotations

from typing import Any

from bridge import exact_json
from bridge.errors import NotReady
from bridge.server.openai_exchange import OpenAiExchange
from bridge.server.service import Service

UNFINISHED = ("queued", "in_progress")


async def run_in_background(service: Service, exchange: OpenAiExchange) -> bytes:
    """Let the exchange go on by itself; the response object to answer with."""
    nursery = service.background
    if nursery is None:
        raise NotReady("The bridge is shutting down.", code="shutdown_initiated", retry_after=5)
    snapshot = exchange.snapshot()
    await exchange.keep(snapshot)
    nursery.start_soon(_run, exchange)
    return exact_json.dumps(snapshot)


async def _run(exchange: OpenAiExchange) -> None:
    try:
        while not exchange.finished:
            await exchange.next()
    except Exception:
        exchange.fail(exchange.mistake())
    finally:
        exchange.end()


def as_interrupted(body: dict[str, Any]) -> dict[str, Any]:
    """A response whose bridge ended before it did."""
    error = {"code": "server_error", "message": "The bridge was stopped before the response was complete. Try again."}
    return body | {"status": "failed", "error": error}
