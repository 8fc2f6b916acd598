"""Every answer has the request's id, and the name that its client gave it."""

from __future__ import annotations

import re

import httpx2
import pytest
from harness import KEY
from openai import DefaultHttpxClient, OpenAI
from server.conftest import LoggedBridge
from server.prompted import MODEL, ask, wait_for
from server.talk import talking

OURS = re.compile("req_[0-9a-f]{32}")
GOOD = "a.Z_0-" + "x" * 122


@pytest.mark.parametrize("path", ["/models", "/nowhere", "/models/none", "/responses"])
def test_every_answer_has_an_id(prompted: LoggedBridge, path: str) -> None:
    """A page's, a refusal's; a new one for each."""
    with prompted.bridge.client() as client:
        ids = [client.get(path).headers.get_list("x-request-id") for _ in range(2)]
    assert all(len(each) == 1 and OURS.fullmatch(each[0]) for each in ids)
    assert ids[0] != ids[1]


def test_a_refusal_of_the_gate_has_one_too(prompted: LoggedBridge) -> None:
    """Whoever has the wrong key can say which request it was."""
    answer = httpx2.get(f"{prompted.bridge.url}/models", headers={"x-request-id": "mine"}, trust_env=False)
    assert answer.status_code == 401
    assert OURS.fullmatch(answer.headers["x-request-id"])
    assert answer.headers["x-client-request-id"] == "mine"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"x_request_id": GOOD}, GOOD),
        ({"x_client_request_id": GOOD}, GOOD),
        ({"x_client_request_id": "first", "x_request_id": "second"}, "first"),
        ({"x_client_request_id": "not good", "x_request_id": "second"}, "second"),
        *(({"x_request_id": bad}, None) for bad in ("", GOOD + "x", "a b", "a\tb", "a;b", "<b>", "ü", "../x")),
    ],
)
def test_what_the_client_calls_it_comes_back(prompted: LoggedBridge, given: dict[str, str], told: str | None) -> None:
    """In a header of its own, if it is harmless; the id stays ours."""
    with prompted.bridge.client() as client:
        sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
        answer = client.get("/models", headers=sent)
    assert answer.headers.get("x-client-request-id") == told
    assert OURS.fullmatch(answer.headers["x-request-id"])


def test_both_stand_in_the_event_log(prompted: LoggedBridge) -> None:
    """The records of a turn are found under our id, and begin with the client's."""
    with prompted.bridge.client() as client:
        named = client.post("/responses", json=ask({"text": "hi"}), headers={"x-client-request-id": "job-7"})
        plain = client.post("/responses", json=ask({"text": "hi"}))
    for answer, name in ((named, "job-7"), (plain, None)):
        (record,) = wait_for(
            lambda: prompted.log.of(answer.headers["x-request-id"], "client_request"),  # noqa: B023
            "it is written",
        )
        assert record["payload"].get("client_request_id") == name


def test_openais_client_finds_it(prompted: LoggedBridge) -> None:
    """Where its users look for it."""
    with OpenAI(api_key=KEY, base_url=prompted.bridge.url, http_client=DefaultHttpxClient(trust_env=False)) as client:
        answer = client.responses.create(
            model=MODEL, input=ask({"text": "hi"})["input"], extra_headers={"X-Client-Request-Id": "job-8"}
        )
    assert answer._request_id is not None
    assert OURS.fullmatch(answer._request_id)


def test_each_message_of_a_socket_is_a_request(prompted: LoggedBridge) -> None:
    """With an id of its own."""
    with talking(prompted.bridge) as talk:
        for word in ("first-of-two", "second-of-two"):
            talk.ask(ask({"text": word}))
    first, second = (
        wait_for(lambda: prompted.log.request_of(word), f"{word} is written")  # noqa: B023
        for word in ("first-of-two", "second-of-two")
    )
    assert first != second
    assert all(OURS.fullmatch(each) for each in (first, second))
