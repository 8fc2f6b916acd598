"""Traces in OpenTelemetry's form: a span for each request, below it the turn, and below that what it waited for.

Names follow the semantic conventions for HTTP and for generative AI. Spans contain no text of requests or answers.
A thread of the SDK sends ended spans from a queue, so the event loop never waits for a collector; when the queue is
full, spans are lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from bridge import __version__
from bridge.core.events import Finished, Usage
from bridge.core.observer import Observer, TurnFacts
from bridge.core.turn import Turn
from bridge.http.request import Request
from bridge.logs import RequestNames
from bridge.redact import harmless
from bridge.telemetry import method_of

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = logging.getLogger("bridge.tracing")

LAST_SPANS = 2.0
"""Seconds that the remaining spans may take when the bridge stops."""
MAX_TEXT = 256
PROBES = frozenset({"/healthz", "/livez", "/readyz", "/health", "/v1/health", "/metrics"})
"""Paths without spans: they are requested every few seconds."""


class RequestSpan:
    """The span of a request, and the context in which its turn's spans are made."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span | None, token: Token[Context]) -> None:
        self._span = span
        self._token = token

    def end(self, method: str, route: str, status: int | None) -> None:
        """End the span. Without a status the client left before the answer."""
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


class Tracing(Observer):
    """Makes spans. `close` sends those that remain."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("turnbridge", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, request: Request, names: RequestNames) -> RequestSpan:
        """Start the span of a request, below the client's own (`traceparent`). A WebSocket has none."""
        from opentelemetry import context, trace

        parent = self._propagator.extract(_carrier(request))
        span = None
        if names.id is not None and request.path not in PROBES:
            attributes = {
                "http.request.method": method_of(request.method),
                "url.scheme": request.scheme,
                "url.path": _shown(request.path),
                "turnbridge.request_id": names.id,
            }
            if names.clients is not None:
                attributes["turnbridge.client_request_id"] = _shown(names.clients)
            span = self._tracer.start_span(
                method_of(request.method), parent, trace.SpanKind.SERVER, attributes=attributes
            )
            parent = trace.set_span_in_context(span, parent)
        return RequestSpan(span, context.attach(parent))

    def here(self) -> Context:
        """The context for the spans of this task."""
        from opentelemetry import context

        return context.get_current()

    def ended(self, facts: TurnFacts, end: Finished, usage: Usage | None, now: float) -> None:
        """Make the spans of a turn: its own, and one for each of its phases."""
        from opentelemetry import trace

        if facts.turn is None:
            return
        parent = facts.trace
        offset = time.time_ns() - round(trio.current_time() * 1e9)

        def stamp(moment: float) -> int:
            return offset + round(moment * 1e9)

        span = self._tracer.start_span(
            f"chat {_shown(facts.turn.model)}",
            parent,
            trace.SpanKind.CLIENT,
            attributes=_attributes(facts, facts.turn, end, usage or Usage()),
            start_time=stamp(facts.arrived),
        )
        inside = trace.set_span_in_context(span, parent)
        marks = [
            ("queue", facts.arrived, facts.begun or now),
            ("first event", facts.begun, facts.first or now),
            ("answer", facts.first, now),
        ]
        for name, start, until in marks:
            if start is not None:
                self._tracer.start_span(name, inside, start_time=stamp(start)).end(stamp(until))
        if end.error is not None:
            span.set_attribute("error.type", end.error.code[:MAX_TEXT])
            span.set_status(trace.StatusCode.ERROR)
        span.end(stamp(now))

    async def close(self) -> None:
        """Send the remaining spans, within a time limit: a collector that does not answer must not delay the stop."""
        with trio.move_on_after(LAST_SPANS) as limit:
            limit.shield = True
            await trio.to_thread.run_sync(self._provider.shutdown, abandon_on_cancel=True)
        if limit.cancelled_caught:
            log.warning("the last traces could not be sent within %g s", LAST_SPANS)


def open_tracing(endpoint: str) -> Tracing | None:
    """Sends traces to the collector at this address; None if the SDK is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed. Install turnbridge[otel], or "
            "unset the variable."
        )
        return None
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over ours.
    known = Resource({SERVICE_NAME: "turnbridge", SERVICE_VERSION: __version__})
    provider = TracerProvider(resource=known.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)


def _carrier(request: Request) -> Mapping[str, str]:
    """The client's trace headers, without values that contain control characters."""
    found = {name: request.header(name.encode()) for name in ("traceparent", "tracestate")}
    texts = {name: value.decode("latin-1") for name, value in found.items() if value is not None}
    return {name: text for name, text in texts.items() if _shown(text) == text}


def _attributes(facts: TurnFacts, turn: Turn, end: Finished, usage: Usage) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": facts.backend,
        "gen_ai.request.model": _shown(turn.requested_model),
        "gen_ai.response.model": _shown(turn.model),
        "gen_ai.request.stream": bool(turn.stream),
        "gen_ai.response.finish_reasons": (end.reason or end.outcome,),
        "turnbridge.request_id": facts.id,
        "turnbridge.protocol": facts.protocol,
    }
    if facts.first is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = facts.first - facts.arrived
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
    """Text from a client, made safe to display and limited in length."""
    return harmless(text[:MAX_TEXT])
