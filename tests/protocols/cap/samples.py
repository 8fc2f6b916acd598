"""Messages for the tests of CAP: those of the specification, and one of every kind."""

from __future__ import annotations

import json
from typing import Any

from harness import ROOT

REQUEST_ID = "550e8400-e29b-41d4-a716-446655440000"
OTHER_ID = "123e4567-e89b-12d3-a456-426614174000"

FIXTURES = ROOT / "fixtures/cap"

SEED = {
    "ServiceRequest": "service_request",
    "ServiceResponse": "service_response",
    "StreamPacket": "stream_packet_delta",
    "StreamPacket error": "stream_packet_error",
    "HealthCheckResponse": "health_check_response",
}
"""The specification's own examples, by model."""


def seed_example(name: str) -> Any:
    """One of the specification's examples."""
    return json.loads((FIXTURES / f"{SEED[name]}.json").read_text())


def request_body(*, context: dict[str, Any] | None = None, **payload: Any) -> dict[str, Any]:
    """A ServiceRequest with these members."""
    return {
        "request_id": REQUEST_ID,
        "context": {"session_id": "s1", "user": {"id": "u1", "name": "Ada"}, **(context or {})},
        "payload": {"query": "Hello", **payload},
    }


def presented(kind: str, data: Any) -> dict[str, Any]:
    """A PresentationEvent."""
    return {"id": OTHER_ID, "timestamp": "2026-01-02T03:04:05Z", "type": kind, "data": data}


PAYLOADS: dict[str, dict[str, Any]] = {
    "citation_block": {"items": [{"source_id": "1", "uri": "https://example.org/a", "title": "A", "snippet": "…"}]},
    "progress_indicator": {"label": "reading", "status": "running", "progress_percent": 0.5},
    "media_carousel": {"items": [{"url": "https://example.org/a.png", "mime_type": "image/png", "alt_text": "a"}]},
    "markdown_block": {"content": "# Größe"},
    "user_error": {"message": "Not now", "code": 503, "domain": "tool", "retryable": True},
    "thought_trace": {"thought": "Hm.", "confidence": 0.5},
}

WHOLE: dict[str, list[Any]] = {
    "ServiceRequest": [
        seed_example("ServiceRequest")
        | {
            "payload": {
                "request_id": OTHER_ID,
                "root_request_id": OTHER_ID,
                "parent_request_id": REQUEST_ID,
                "query": "",
                "files": ["anything"],
                "conversation_id": "c",
                "session_id": "s",
                "meta": {"a": None, "b": [1, None, {"c": "ü"}]},
            }
        }
    ],
    "SessionContext": [{"session_id": "", "user": {"id": "u", "name": "n"}, "agent": {"id": "a", "name": "b"}}],
    "Identity": [{"id": "u", "name": "n"}, {"id": "u", "name": "n", "role": "anything"}],
    "AgentRequest": [{"query": "x", "files": [], "meta": {}}],
    "ServiceResponse": [
        seed_example("ServiceResponse"),
        {"request_id": REQUEST_ID, "created_at": "2026-01-02T03:04:05.000600+02:00", "output": {"a": None}},
    ],
    "StreamError": [
        {"code": "x", "message": "y", "severity": "fatal"},
        {"code": "x", "message": "y", "severity": "transient", "details": {"retry_after": None}},
    ],
    "StreamPacket": [
        seed_example("StreamPacket"),
        seed_example("StreamPacket error"),
        {"op": "delta", "p": ""},
        {"op": "delta", "p": 'ü\u2028\u0000"\\\n'},
        {"op": "close", "p": None},
        {"op": "event", "p": {"any": [None, {"thing": 2**70}]}},
        {"op": "event", "p": "text"},
        {"op": "event", "p": None},
        *({"op": "event", "p": presented(kind, data)} for kind, data in PAYLOADS.items()),
    ],
    "HealthCheckResponse": [seed_example("HealthCheckResponse")],
    "ChatMessage": [
        {"role": "user", "content": "", "timestamp": "2026-01-02T03:04:05Z"},
        {"role": "tool", "content": "4", "name": "add", "tool_call_id": "c1", "timestamp": "2026-01-02T03:04:05Z"},
    ],
    "PresentationEvent": [presented(kind, data) for kind, data in PAYLOADS.items()],
    "CitationItem": PAYLOADS["citation_block"]["items"],
    "CitationBlock": [PAYLOADS["citation_block"], {"items": []}],
    "ProgressUpdate": [PAYLOADS["progress_indicator"], {"label": "", "status": "failed"}],
    "MediaItem": PAYLOADS["media_carousel"]["items"],
    "MediaCarousel": [PAYLOADS["media_carousel"], {"items": []}],
    "MarkdownBlock": [PAYLOADS["markdown_block"]],
    "UserError": [PAYLOADS["user_error"] | {"more": 1}],
    "ThoughtTrace": [PAYLOADS["thought_trace"] | {"more": [None]}],
}
"""Messages of every model that are written exactly as they are read."""
