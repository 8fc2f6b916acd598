"""Clients that leave: the provider's connection is closed within a second, at whatever point, over every backend."""

from __future__ import annotations

import socket
import time
from functools import partial
from operator import attrgetter

import pytest
from fault.providers import KINDS, labelled, marked
from fault.rig import FORMS, PATHS, Rig, body_of
from server.prompted import send_request, wait_for
from server.talk import talking

pytestmark = pytest.mark.deep

POINTS = ("early", "silent", "held")
"""Before the provider's headers, before its first event, and after it."""
KIND = pytest.mark.parametrize("kind", KINDS)


def check_gone(rig: Rig, kind: str, labels: list[str], left: float) -> None:
    server = rig.providers.of(kind)
    for label in labels:
        (request,) = labelled(server, label)
        server.wait_for(partial(attrgetter("left_at"), request))
        assert request.left_at is not None
        assert request.left_at - left < 1, label
        req_id = rig.request_of(f"to-{kind}", label)
        assert req_id is not None
        end = wait_for(partial(rig.log.turn_end, req_id), "turn_end")
        assert (end["outcome"], end["reason"]) == ("cancelled", "client_gone")
    assert rig.ask(f"to-{kind}").status == 200
    assert "Traceback" not in rig.bridge.stderr.read_text()


@KIND
def test_a_client_that_leaves_takes_its_turn_along(rig: Rig, kind: str) -> None:
    """Both endpoints, streamed and not."""
    clients: dict[str, socket.socket] = {}
    try:
        for point in POINTS:
            for endpoint, streamed in FORMS:
                label = f"leaving.{point}.{endpoint}.{streamed}"
                body = body_of(endpoint, f"to-{kind}", marked(point, label), stream=streamed)
                clients[label] = send_request(rig.bridge, PATHS[endpoint], body)
        for label, client in clients.items():
            rig.kept_waiting(kind, label)
            if "held" in label and "True" in label:
                assert client.recv(1)
    finally:
        left = time.monotonic()
        for client in clients.values():
            client.close()
    check_gone(rig, kind, list(clients), left)


@KIND
def test_so_does_one_that_leaves_over_a_websocket(rig: Rig, kind: str) -> None:
    """Also with several turns at once."""
    labels = [f"socket.{point}" for point in POINTS]
    with talking(rig.bridge) as talk:
        for point, label in zip(POINTS, labels, strict=True):
            talk.send({"model": f"to-{kind}", "input": marked(point, label)}, stream_id=point)
        for label in labels:
            rig.kept_waiting(kind, label)
        left = time.monotonic()
    check_gone(rig, kind, labels, left)


@KIND
def test_several_choices_leave_together(rig: Rig, kind: str) -> None:
    body = body_of("chat", f"to-{kind}", marked("held", "choices"), n=3, stream=True)
    server = rig.providers.of(kind)
    with send_request(rig.bridge, PATHS["chat"], body):
        server.wait_for(lambda: server.plays.gates["choices"].held == 3)
        left = time.monotonic()
    requests = labelled(server, "choices")
    assert len(requests) == 3
    server.wait_for(lambda: all(request.left_at for request in requests))
    assert all(request.left_at - left < 1 for request in requests if request.left_at)


def test_a_response_that_is_cancelled_is_hung_up_on(rig: Rig) -> None:
    """In the background nobody leaves; it is cancelled instead."""
    for kind in KINDS:
        made = rig.ask(f"to-{kind}", marked("held", "cancelled"), background=True)
        rig.kept_waiting(kind, "cancelled")
        asked = time.monotonic()
        ended = rig.send("POST", f"/v1/responses/{made.body['id']}/cancel")
        assert ended.body["status"] == "cancelled"
        (request,) = labelled(rig.providers.of(kind), "cancelled")
        rig.providers.of(kind).wait_for(partial(attrgetter("left_at"), request))
        assert request.left_at is not None
        assert request.left_at - asked < 1
