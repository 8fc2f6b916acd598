"""The same cases over every backend and every client protocol: one bridge, real clients, scripted providers.

What a cell may not be is in `cells.py`; docs/backends.md has the table, which scripts/backends-matrix makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from matrix.cells import Cell, battery, fault_of
from matrix.client import Conversation
from matrix.provider import RETRY_AFTER, SIGNATURE, Provider
from matrix.rig import Rig, start_rig

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

BERN = ("weather", '{"city":"Bern"}')
OSLO = ("weather", '{"city":"Oslo"}')
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


class Talk:
    """One cell: a provider, and a way to begin a conversation with it."""

    def __init__(self, rig: Rig, cell: Cell) -> None:
        self.rig = rig
        self.protocol = cell.protocol
        self.backend = cell.backend
        self.provider: Provider = rig.providers[cell.backend]

    def begin(self, **options: Any) -> Conversation:
        """With whatever model the provider answers for now."""
        return self.rig.conversation(self.protocol, self.provider.model, **options)


def text(talk: Talk) -> None:
    """Every character of it."""
    said = talk.provider.says("Hello ", "wörld 🌍\n", "<b>&</b>")
    got = talk.begin().ask("hi")
    assert (got.text, got.calls, got.thoughts, got.complete) == (said, [], "", True)


def tools(talk: Talk) -> None:
    """A call; its output reaches the provider, and the answer to it the client."""
    called = talk.provider.calls(BERN)
    conversation = talk.begin(tools=True)
    got = conversation.ask("How is the weather in Bern?")
    assert got.calls == called
    said = talk.provider.says("It is sunny.")
    assert got.text == ""
    assert conversation.give("sunny, 21 °C").text == said
    if talk.backend != "mock":  # whose answer is the output
        assert talk.provider.outputs() == ["sunny, 21 °C"]


def parallel_tools(talk: Talk) -> None:
    """Two calls in one answer, both answered."""
    called = talk.provider.calls(BERN, OSLO)
    conversation = talk.begin(tools=True)
    assert conversation.ask("How is the weather in Bern and Oslo?").calls == called
    said = talk.provider.says("Sunny, and rain.")
    assert conversation.give("sunny", "rain").text == said
    assert talk.provider.outputs() == ["sunny", "rain"]


def images(talk: Talk) -> None:
    """A data URL arrives, where the provider looks for an image."""
    said = talk.provider.says("A pixel.")
    assert talk.begin().ask("What is this?", PIXEL).text == said
    assert talk.provider.images() == [PIXEL]


def reasoning(talk: Talk) -> None:
    """Thoughts, apart from the answer."""
    talk.provider.thinks("I look outside.")
    got = talk.begin(thinks=True).ask("hi")
    assert (got.thoughts, got.text) == ("I look outside.", "Done.")


def reasoning_back(talk: Talk) -> None:
    """Encrypted or signed thoughts are given back with the call that they led to."""
    talk.provider.thinks("I look outside.", BERN)
    conversation = talk.begin(tools=True, thinks=True)
    got = conversation.ask("How is the weather in Bern?")
    assert (got.thoughts, got.calls) == ("I look outside.", [BERN])
    said = talk.provider.says("It is sunny.")
    assert conversation.give("sunny").text == said
    assert (talk.provider.thoughts(), talk.provider.outputs()) == ([SIGNATURE], ["sunny"])


def switch_provider(talk: Talk) -> None:
    """In mid-conversation, to every other provider and back: calls go along, each thought stays with its maker."""
    first = talk.provider
    others = [provider for name, provider in talk.rig.providers.items() if name not in (talk.backend, "mock")]
    carries = talk.protocol not in ("chat", "chat_stream") and talk.backend != "openai"
    for second in others:
        first.thinks("I look outside.", BERN)
        conversation = talk.begin(tools=True, thinks=True)
        got = conversation.ask("How is the weather in Bern?")
        assert (got.thoughts, got.calls) == ("I look outside.", [BERN])

        conversation.model = second.model
        second.thinks("Then Oslo.", OSLO)
        got = conversation.give("sunny")
        assert (got.thoughts, got.calls) == ("Then Oslo.", [OSLO])
        assert (second.thoughts(), second.outputs()) == ([], ["sunny"])
        said = second.says("Sunny, and rain.")
        assert conversation.give("rain").text == said
        assert second.outputs() == ["sunny", "rain"]

        conversation.model = first.model
        said = first.says("You are welcome.")
        assert conversation.ask("Thanks!").text == said
        assert first.outputs() == ["sunny", "rain"]
        assert first.thoughts() == ([SIGNATURE] if carries else [])


def bad_request(talk: Talk) -> None:
    """The provider's own words, as the client's own kind of error."""
    talk.provider.refuses(400, "This model does not like poems.")
    refused = talk.begin().refused("a poem")
    assert refused.status in (400, None)
    assert refused.message == "This model does not like poems."


def rate_limit(talk: Talk) -> None:
    """Told at once, since the provider wants more patience than the bridge has; how much is told, too."""
    talk.provider.refuses(429, "Slow down.")
    refused = talk.begin().refused("hi")
    assert refused.status in (429, None)
    assert refused.code == "rate_limit_exceeded"
    assert refused.message.startswith("Slow down.")
    assert refused.wait in (RETRY_AFTER, None)
    assert (refused.wait is None) == (talk.protocol in ("websocket", "exec"))


def incomplete(talk: Talk) -> None:
    """The limit of tokens: the text is kept, and nobody takes it for the whole."""
    talk.provider.cuts("Once upon a")
    got = talk.begin().ask("a long story")
    assert (got.text, got.complete) == ("Once upon a", False)


def cancel(talk: Talk) -> None:
    """When the client leaves, the provider is left within a second."""
    talk.provider.holds("Once ")
    left = talk.begin().leave("a long story", talk.provider.wait_until_held)
    assert talk.provider.left_at() - left < 1


def usage(talk: Talk) -> None:
    """Input with what was cached, what was cached, output."""
    talk.provider.says("Hello.")
    got = talk.begin().ask("hi")
    assert got.usage is not None
    if talk.backend == "mock":
        assert got.usage[0] > 0 < got.usage[2]
    else:
        assert got.usage == talk.provider.usage


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with start_rig(tmp_path_factory.mktemp("matrix")) as rig:
        yield rig


def _parameters() -> Iterator[Any]:
    for cell in battery():
        fault = fault_of(cell)
        marks = [pytest.mark.xfail(strict=True, reason=fault)] if fault is not None else []
        yield pytest.param(cell, id=cell.id, marks=marks)


@pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")  # the client knows such dates
@pytest.mark.parametrize("cell", list(_parameters()))
def test_cell(rig: Rig, cell: Cell) -> None:
    """A backend, a client protocol, a case."""
    try:
        globals()[cell.case](Talk(rig, cell))
    finally:
        for provider in rig.providers.values():
            provider.settle()
