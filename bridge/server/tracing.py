"""Traces in OpenTelemetry's form: a span for each request, below it the turn, and below that what it waited for.

Names are those of the semantic conventions for HTTP and for generative AI. Nothing of what is asked or answered is in a
span. Ended spans go into a queue that a thread of the SDK's sends away, so the loop never waits for a collector; when
the queue is full, spans are lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from bridge import __version__
from bridge.http.request import Request
from bridge.logs import RequestNames
from bridge.redact import harmless
from bridge.server.counts import method_of
from bridge.turn.events import Finished, Usage
from bridge.turn.turn import Turn

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = logging.getLogger("bridge.tracing")

LAST_SPANS = 2.0
"""Seconds for which a stop waits for a collector to take what is left."""
MAX_TEXT = 256
PROBES = frozenset({"/healthz", "/livez", "/readyz", "/health", "/v1/health", "/metrics"})
"""Asked every few seconds, and nothing is learnt from them: they have no span."""


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """What a turn's spans tell. Times are trio's: the arrival, the start, the first event (if any), and the end."""

    request_id: str
    protocol: str
    backend: str
    turn: Turn
    end: Finished
    usage: Usage
    arrived: float
    begun: float | None
    first: float | None
    ended: float


class RequestSpan:
    """While a request is answered, or a WebSocket is open: what their spans belong to."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span | None, token: Token[Context]) -> None:
        self._span = span
        self._token = token

    def end(self, method: str, route: str, status: int | None) -> None:
        """It is over; a request without a status has lost its client before."""
        from opentelemetry import context
        from opentelemetry.trace import StatusCode

        context.detach(self._token)
        if self._span is None:
            return
        self._span.update_name(f"{method} {route}")
        self._span.set_attribute("http.route", route)
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
        if status is None or status >= 500:
            self._span.set_attribute("error.type", "client_gone" if status is None else str(status))
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class Tracing:
    """Makes spans. `close` sends what is left."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("codex-bridge", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, request: Request, names: RequestNames) -> RequestSpan:
        """A request has come: its span, below the one that its client names (`traceparent`). A socket has none."""
        from opentelemetry import context, trace

        parent = self._propagator.extract(_carrier(request))
        span = None
        if names.id is not None and request.path not in PROBES:
            attributes = {
                "http.request.method": method_of(request.method),
                "url.scheme": request.scheme,
                "url.path": _shown(request.path),
                "codex_bridge.request_id": names.id,
            }
            if names.clients is not None:
                attributes["codex_bridge.client_request_id"] = _shown(names.clients)
            span = self._tracer.start_span(
                method_of(request.method), parent, trace.SpanKind.SERVER, attributes=attributes
            )
            parent = trace.set_span_in_context(span, parent)
        return RequestSpan(span, context.attach(parent))

    def here(self) -> Context:
        """What the spans of this task's work belong to."""
        from opentelemetry import context

        return context.get_current()

    def turn(self, parent: Context, seen: EndedTurn) -> None:
        """The spans of a turn that is over: its own, and one for each thing that it waited for."""
        from opentelemetry import trace

        offset = time.time_ns() - round(trio.current_time() * 1e9)

        def stamp(moment: float) -> int:
            return offset + round(moment * 1e9)

        span = self._tracer.start_span(
            f"chat {_shown(seen.turn.model)}",
            parent,
            trace.SpanKind.CLIENT,
            attributes=_attributes(seen),
            start_time=stamp(seen.arrived),
        )
        inside = trace.set_span_in_context(span, parent)
        marks = [
            ("queue", seen.arrived, seen.begun or seen.ended),
            ("first event", seen.begun, seen.first or seen.ended),
            ("answer", seen.first, seen.ended),
        ]
        for name, start, end in marks:
            if start is not None:
                self._tracer.start_span(name, inside, start_time=stamp(start)).end(stamp(end))
        if seen.end.error is not None:
            span.set_attribute("error.type", seen.end.error.code[:MAX_TEXT])
            span.set_status(trace.StatusCode.ERROR)
        span.end(stamp(seen.ended))

    async def close(self) -> None:
        """Send what is left, for a moment; a collector that does not answer holds up no stop."""
        with trio.move_on_after(LAST_SPANS) as limit:
            limit.shield = True
            await trio.to_thread.run_sync(self._provider.shutdown, abandon_on_cancel=True)
        if limit.cancelled_caught:
            log.warning("the last traces could not be sent within %g s", LAST_SPANS)


def open_tracing(endpoint: str) -> Tracing | None:
    """Traces to the collector at this address; None where what they need is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but there are no traces: install codex-bridge[otel], or unset it"
        )
        return None
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over ours.
    known = Resource({SERVICE_NAME: "codex-bridge", SERVICE_VERSION: __version__})
    provider = TracerProvider(resource=known.merge(_named_by_operator()), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)


def _named_by_operator() -> Any:
    from opentelemetry.sdk.resources import OTELResourceDetector

    return OTELResourceDetector().detect()


def _carrier(request: Request) -> Mapping[str, str]:
    """What names a client's span. Other words beside it are handed on, unless they may not be shown as they are."""
    found = {name: request.header(name.encode()) for name in ("traceparent", "tracestate")}
    texts = {name: value.decode("latin-1") for name, value in found.items() if value is not None}
    return {name: text for name, text in texts.items() if _shown(text) == text}


def _attributes(seen: EndedTurn) -> dict[str, Any]:
    turn, usage = seen.turn, seen.usage
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": seen.backend,
        "gen_ai.request.model": _shown(turn.requested_model),
        "gen_ai.response.model": _shown(turn.model),
        "gen_ai.request.stream": bool(turn.stream),
        "gen_ai.response.finish_reasons": (seen.end.reason or seen.end.outcome,),
        "codex_bridge.request_id": seen.request_id,
        "codex_bridge.protocol": seen.protocol,
    }
    if seen.first is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = seen.first - seen.arrived
    if turn.n is not None and turn.n > 1:
        attributes["gen_ai.request.choice.count"] = turn.n
    if usage.total:
        attributes |= {
            "gen_ai.usage.input_tokens": usage.input,
            "gen_ai.usage.output_tokens": usage.output,
            "gen_ai.usage.cache_read.input_tokens": usage.cached,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
        }
    return attributes


def _shown(text: str) -> str:
    """A text that a client may have written, as it may be shown."""
    return harmless(text[:MAX_TEXT])
