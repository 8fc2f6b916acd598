"""A collector of traces: an HTTP server on loopback that takes OTLP, and what it was sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Span:
    """One span, in plain values. Times are nanoseconds, ids hex."""

    name: str
    id: str
    trace: str
    parent: str
    kind: int
    start: int
    end: int
    failed: bool
    attributes: dict[str, Any]


@dataclass
class Collector:
    """What was sent, by path. While `stuck` is set nothing is answered."""

    address: str
    bodies: list[tuple[str, bytes, dict[str, str]]] = field(default_factory=list)
    stuck: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def messages(self) -> list[ExportTraceServiceRequest]:
        """All that came, decoded."""
        return [ExportTraceServiceRequest.FromString(body) for _, body, _ in self.bodies]

    @property
    def spans(self) -> list[Span]:
        """All spans that came."""
        return [
            _plain(span)
            for message in self.messages
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def of(self, request_id: str) -> list[Span]:
        """The spans that have this request's id."""
        return [span for span in self.spans if span.attributes.get("turnbridge.request_id") == request_id]

    def named(self, name: str) -> list[Span]:
        """The spans of this name."""
        return [span for span in self.spans if span.name == name]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.bodies.append((self.path, body, {name.lower(): value for name, value in self.headers.items()}))
            if collector.stuck.is_set():
                collector.released.wait(60)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        collector.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _plain(span: Any) -> Span:
    attributes = {each.key: _value(each.value) for each in span.attributes}
    ids = span.span_id.hex(), span.trace_id.hex(), span.parent_span_id.hex()
    times = span.start_time_unix_nano, span.end_time_unix_nano
    return Span(span.name, *ids, span.kind, *times, span.status.code == 2, attributes)


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
