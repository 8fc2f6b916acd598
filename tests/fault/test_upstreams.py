"""Everything that a provider can do wrong, for each kind of provider, over both endpoints, streamed and not.

The client gets one clear end; nothing is tried again after the first event; nobody else notices. All that takes time is
asked for at once, before the first test looks at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import pytest
from fault.providers import HELLO, KINDS, WAIT, labelled, marked
from fault.rig import ENDPOINTS, FORMS, LIMIT, Outcome, Rig
from server.talk import talking

pytestmark = pytest.mark.deep

TRIES = 4
"""How often something is asked for that may be over in a moment."""
BACK_OFF = 2.7
"""The longest that the pauses between them take together."""
HOLD = 2.0
"""After so long a stream begins, whatever is known by then."""
SLACK = 10.0
"""For a machine that has other things to do; far less than any limit that is set by default."""


@dataclass(frozen=True)
class Fault:
    """What is asked for, and what must come of it. `place` is the backend's, of those of this kind."""

    play: str
    status: int
    code: str
    tries: int = 1
    said: str = ""
    """What a stream has shown before the failure; nothing means that its status can still tell."""
    place: str = ""
    seconds: float = 0.0
    """How long it takes at most."""

    @property
    def name(self) -> str:
        return self.place.lstrip(".") if self.play == "hello" else self.play


QUICK = [
    Fault("403", 403, "upstream_forbidden"),
    Fault("429-later", 429, "rate_limit_exceeded"),
    Fault("429-soon", 429, "rate_limit_exceeded", TRIES),
    Fault("500", 502, "upstream_error", TRIES),
    Fault("503", 503, "overloaded", TRIES),
    Fault("html", 502, "upstream_error"),
    Fault("html-502", 502, "upstream_error", TRIES),
    Fault("reset", 502, "stream_truncated", said=HELLO[0]),
    Fault("truncated", 502, "stream_truncated", said=HELLO[0]),
    Fault("no-end", 502, "stream_truncated", said="".join(HELLO)),
]
SLOW = [
    Fault("reset-at-once", 502, "upstream_unreachable", TRIES, seconds=BACK_OFF),
    Fault("reset-after-headers", 502, "upstream_unreachable", TRIES, seconds=BACK_OFF),
    Fault("half-an-event", 502, "upstream_unreachable", TRIES, seconds=BACK_OFF),
    Fault("hello", 502, "upstream_unreachable", 0, place=".tls", seconds=BACK_OFF),
    Fault("hello", 502, "upstream_unreachable", 0, place=".refused", seconds=BACK_OFF),
    Fault("hello", 502, "upstream_unreachable", 0, place=".dns", seconds=BACK_OFF),
    Fault("early", 504, "backend_timeout", place=".hasty", seconds=LIMIT),
    Fault("silent", 504, "backend_timeout", place=".hasty", seconds=LIMIT),
    Fault("stops", 504, "backend_timeout", said=HELLO[0], place=".hasty", seconds=LIMIT),
]
REFUSED_LOGIN = Fault("401", 401, "")
KIND = pytest.mark.parametrize("kind", KINDS)

Form = tuple[str, bool]
Asked = dict[Form, "Future[Outcome]"]


def label_of(fault: Fault, kind: str, form: Form) -> str:
    return f"{fault.name}.{kind}.{form[0]}.{'streamed' if form[1] else 'whole'}"


def ask(rig: Rig, pool: ThreadPoolExecutor, fault: Fault, kind: str) -> Asked:
    """The same in every form at once."""
    return {
        form: pool.submit(
            rig.ask,
            f"to-{kind}{fault.place}",
            marked(fault.play, label_of(fault, kind, form)),
            endpoint=form[0],
            stream=form[1],
        )
        for form in FORMS
    }


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(48) as ready:
        yield ready


@pytest.fixture(scope="module")
def slow(rig: Rig, pool: ThreadPoolExecutor) -> dict[tuple[Fault, str], Asked]:
    """What takes its time, asked for already."""
    return {(fault, kind): ask(rig, pool, fault, kind) for fault in SLOW for kind in KINDS}


def check_end(fault: Fault, outcome: Outcome, streamed: bool) -> None:
    """One failure, told as early as it could be; in a stream it is the last thing, after all that was said."""
    if streamed and (fault.said or (outcome.status == 200 and outcome.seconds >= HOLD)):
        assert outcome.status == 200
        assert outcome.text == fault.said
        events = outcome.body
        if "type" in events[-1]:
            ends = [event["type"] for event in events if event["type"] in ENDS]
            assert ends == ["response.failed"]
            assert events[-1]["type"] == "response.failed"
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
        else:
            assert list(events[-1]) == ["error"]
            assert all(choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"])
            assert outcome.raw.endswith("data: [DONE]\n\n")
    else:
        assert outcome.status == fault.status, outcome.raw
        assert list(outcome.error or ()) == ["message", "type", "param", "code"]
    assert outcome.error is not None
    assert outcome.error["message"]
    if fault.code:
        assert outcome.code == fault.code


ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


def check(rig: Rig, fault: Fault, kind: str, asked: Asked) -> None:
    for form, future in asked.items():
        outcome = future.result()
        check_end(fault, outcome, form[1])
        wanted = 2 if (fault.play, kind) == ("401", "codex") else fault.tries
        assert len(labelled(rig.providers.of(kind), label_of(fault, kind, form))) == wanted
        assert outcome.seconds < fault.seconds + SLACK
        for secret in rig.secrets():
            assert secret not in outcome.raw + str(outcome.headers)
        assert "canary" not in outcome.raw
        if fault.play == "429-later":
            assert outcome.headers["retry-after"] == str(WAIT)


@KIND
@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.name)
def test_a_fault_is_one_clear_end(rig: Rig, slow: object, pool: ThreadPoolExecutor, fault: Fault, kind: str) -> None:
    """While others take their time."""
    check(rig, fault, kind, ask(rig, pool, fault, kind))


@KIND
@pytest.mark.parametrize("fault", SLOW, ids=lambda fault: fault.name)
def test_a_fault_that_takes_time_is_bounded(
    rig: Rig, slow: dict[tuple[Fault, str], Asked], fault: Fault, kind: str
) -> None:
    check(rig, fault, kind, slow[fault, kind])


@KIND
def test_a_login_that_is_refused_is_not_tried_for_ever(
    rig: Rig, slow: dict[tuple[Fault, str], Asked], pool: ThreadPoolExecutor, kind: str
) -> None:
    """Codex's is renewed, and tried once more; that ends the login before it, so nobody else may be on the way."""
    for asked in slow.values():
        for future in asked.values():
            future.result()
    check(rig, REFUSED_LOGIN, kind, ask(rig, pool, REFUSED_LOGIN, kind))


@KIND
def test_whoever_is_given_up_is_hung_up_on(rig: Rig, slow: dict[tuple[Fault, str], Asked], kind: str) -> None:
    """A provider that is too slow does not go on working for nobody."""
    server = rig.providers.of(kind)
    for fault in SLOW:
        if fault.status == 504:
            for form, future in slow[fault, kind].items():
                future.result()
                (request,) = labelled(server, label_of(fault, kind, form))
                server.wait_for(partial(attrgetter("left_at"), request))


def test_a_stranger_with_a_certificate_of_his_own_gets_nothing(rig: Rig, slow: dict[tuple[Fault, str], Asked]) -> None:
    """The handshake fails, so neither key nor prompt is ever sent."""
    for (fault, _), asked in slow.items():
        if fault.place == ".tls":
            for future in asked.values():
                future.result()
    assert rig.providers.self_signed.handshakes >= len(KINDS) * len(FORMS)
    assert rig.providers.self_signed.heard == b""


def test_where_the_provider_is_is_not_told(rig: Rig, slow: dict[tuple[Fault, str], Asked]) -> None:
    """That is the operator's business."""
    (refused,) = [fault for fault in SLOW if fault.place == ".refused"]
    outcome = slow[refused, "openai"]["responses", False].result()
    assert rig.providers.unbound.url.rpartition(":")[2] not in outcome.raw


def test_a_certificate_that_is_not_trusted_is_named_as_the_reason(
    rig: Rig, slow: dict[tuple[Fault, str], Asked]
) -> None:
    (tls,) = [fault for fault in SLOW if fault.place == ".tls"]
    outcome = slow[tls, "openai"]["responses", False].result()
    assert "certificate" in outcome.raw.lower()


def test_the_first_words_may_come_late(rig: Rig, pool: ThreadPoolExecutor) -> None:
    """A stream that has begun with nothing but comments ends as well as any other, or fails with an event."""
    asked = {
        (kind, play, endpoint): pool.submit(
            rig.ask, f"to-{kind}", marked(play, f"late.{play}.{endpoint}"), endpoint=endpoint, stream=True
        )
        for kind in KINDS
        for play in ("early", "late-403")
        for endpoint in ENDPOINTS
    }
    for kind, play, endpoint in asked:
        gate = rig.kept_waiting(kind, f"late.{play}.{endpoint}")
        rig.begun(f"to-{kind}", f"late.{play}.{endpoint}")
        gate.open()
    for (_, play, _), future in asked.items():
        outcome = future.result()
        assert outcome.status == 200
        assert (outcome.text, outcome.code) == (
            ("".join(HELLO), None) if play == "early" else ("", "upstream_forbidden")
        )


@KIND
def test_a_fault_over_a_websocket_leaves_the_connection(rig: Rig, kind: str) -> None:
    """A refusal is an error message, a broken answer a failed response; the next request is answered."""
    with talking(rig.bridge) as talk:
        refused = talk.refused({"model": f"to-{kind}", "input": marked("403", f"ws.{kind}")})
        assert (refused["status"], refused["error"]["code"]) == (403, "upstream_forbidden")
        talk.send({"model": f"to-{kind}", "input": marked("reset", f"ws-reset.{kind}")})
        failed = talk.rest()[-1]
        assert failed["type"] == "response.failed"
        assert failed["response"]["error"]["bridge_code"] == "stream_truncated"
        assert talk.ask({"model": f"to-{kind}", "input": "hi"})["status"] == "completed"
    assert len(labelled(rig.providers.of(kind), f"ws-reset.{kind}")) == 1


def test_the_bridge_is_well_after_all_that(rig: Rig, slow: dict[tuple[Fault, str], Asked]) -> None:
    for asked in slow.values():
        for future in asked.values():
            future.result()
    rig.assert_well()
