"""Which backend serves a model, and which names there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from bridge.backends.router import MOCK_MODELS, Router
from bridge.errors import ModelNotFound, NotReady
from bridge.turn.models import ModelChoice

MOCK: Any = SimpleNamespace(name="mock")


class Codex:
    """A backend that knows these models, and tells so after some `seconds`, or never."""

    name = "codex"

    def __init__(self, *, can_answer: bool = True, seconds: float = 0, refuses: bool = False) -> None:
        self.can_answer = can_answer
        self._seconds = seconds
        self._refuses = refuses

    def models(self) -> list[str]:
        return ["gpt-9", "Own-Model"]

    def efforts(self) -> dict[str, list[str]]:
        return {"gpt-9": ["minimal", "low", "xhigh"], "Own-Model": []}

    def default_model(self, fallback: str) -> str:
        return "gpt-9"

    async def wait_until_known(self) -> None:
        await trio.sleep(self._seconds)
        if self._refuses:
            raise NotReady("no Codex")

    async def read_rate_limits(self) -> dict[str, Any]:
        return {"planType": "plus"}


def router(codex: Codex | None, **aliases: str) -> Router:
    known: Any = codex
    return Router(MOCK, known, aliases)


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("gpt-9", ModelChoice("gpt-9", "gpt-9")),
        ("GPT-9", ModelChoice("GPT-9", "gpt-9")),
        ("own-model", ModelChoice("own-model", "Own-Model")),
        ("gpt-9-low", ModelChoice("gpt-9-low", "gpt-9", "low")),
        ("gpt-9-xh", ModelChoice("gpt-9-xh", "gpt-9", "xhigh")),
        ("fast", ModelChoice("fast", "gpt-9")),
        ("Mock-Echo", ModelChoice("Mock-Echo", "mock-echo")),
    ],
)
def test_a_name_leads_to_a_model_and_its_backend(name: str, choice: ModelChoice) -> None:
    """In any case, with or without an effort, by an alias; the mock ones to the stand-in."""
    codex = Codex()
    names = router(codex, fast="gpt-9")
    assert names.resolve(name) == choice
    backend: Any = names.backend(choice.effective)
    assert backend is (MOCK if choice.effective in MOCK_MODELS else codex)


@pytest.mark.parametrize("codex", [Codex(), None])
def test_an_unknown_name_is_told_some_that_exist(codex: Codex | None) -> None:
    """Without a Codex, the mock ones."""
    with pytest.raises(ModelNotFound) as caught:
        router(codex).resolve("gpt-4")
    assert ("gpt-9" if codex else "mock-echo") in caught.value.message


def test_all_names_are_listed_once() -> None:
    """Models, mock models, aliases, and each model with the efforts that a name can carry."""
    assert router(Codex(), fast="gpt-9", **{"gpt-9-low": "gpt-9"}).models() == [
        "gpt-9",
        "Own-Model",
        *MOCK_MODELS,
        "fast",
        "gpt-9-low",
        "gpt-9-xhigh",
    ]


@pytest.mark.parametrize("codex", [Codex(can_answer=False), None])
def test_models_that_cannot_answer_are_not_listed(codex: Codex | None) -> None:
    """Nobody is logged in, or there is no Codex at all."""
    assert router(codex, fast="gpt-9").models() == list(MOCK_MODELS)


async def test_waiting_for_the_models_has_an_end(autojump_clock: Any) -> None:
    """With patience it never fails; without, it tells why there are none."""
    await router(None).wait_until_known()
    await router(Codex(seconds=5)).wait_until_known()
    before = trio.current_time()
    await router(Codex(seconds=100)).wait_until_known(2)
    assert trio.current_time() - before == pytest.approx(2)
    await router(Codex(refuses=True)).wait_until_known(2)
    with pytest.raises(NotReady):
        await router(Codex(refuses=True)).wait_until_known()


async def test_rate_limits_are_codex_own() -> None:
    """The mock models have none."""
    assert await router(Codex()).read_rate_limits() == {"planType": "plus"}
    assert await router(None).read_rate_limits() is None
