"""Which backend serves a model, and which names there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from bridge.core.backend import Abilities, Backend, EventStream
from bridge.core.models import ModelChoice, Target, make_rule, resolve_model, unlisted_model
from bridge.core.turn import Turn
from bridge.errors import ModelNotFound, NotReady
from bridge.routing.router import MOCK_MODELS, Router, Served


class Other(Backend):
    """A provider that takes any model, and lists these."""

    def __init__(self, name: str, *listed: str) -> None:
        self.name = name
        self._listed = listed

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        raise NotImplementedError

    def models(self) -> list[str]:
        return list(self._listed)


class Codex(Other):
    """A backend that knows its models alone, and tells them after some `seconds`, or never."""

    def __init__(
        self, *, can_answer: bool = True, seconds: float = 0, refuses: bool = False, any_model: bool = False
    ) -> None:
        super().__init__("codex", "gpt-9", "Own-Model")
        self.takes = Abilities(any_model=any_model)
        self._can_answer = can_answer
        self._seconds = seconds
        self._refuses = refuses

    def names(self) -> list[str]:
        return [*self.models(), "gpt-9-low"] if self._can_answer else []

    def knows(self, name: str) -> bool:
        return self._find(name) is not None

    def resolve(self, name: str) -> ModelChoice:
        return self._find(name) or unlisted_model(name)

    def _find(self, name: str) -> ModelChoice | None:
        return resolve_model(name, known=self.models(), default="gpt-9", aliases={})

    def lists(self) -> tuple[object, ...] | None:
        return None if self._seconds or self._refuses else ()

    async def wait_until_known(self) -> None:
        await trio.sleep(self._seconds)
        if self._refuses:
            raise NotReady("no Codex")

    async def read_rate_limits(self) -> Mapping[str, Any] | None:
        return {"planType": "plus"}


def router(codex: Codex | None, *others: Served, rules: Mapping[str, str] | None = None, **aliases: str) -> Router:
    served = [serve(codex)] if codex is not None else []
    return Router(
        Other("mock", *MOCK_MODELS),
        [*served, *others],
        default="codex" if codex is not None else None,
        rules=[make_rule(pattern, backend) for pattern, backend in (rules or {}).items()],
        aliases=aliases,
        missing={"anthropic": "ANTHROPIC_API_KEY is not set."},
    )


def serve(backend: Backend, kind: str = "", **about: Any) -> Served:
    return Served(backend, Target(backend.name, kind, **about))


CLAUDE = serve(Other("claude"), "anthropic")
GROQ = serve(Other("groq", "llama-3"), "groq", models=("mixtral",))
OFF = serve(Other("off"), "gemini", disabled_reason="GEMINI_API_KEY is not set.")


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("gpt-9", ("gpt-9", None, "codex")),
        ("GPT-9", ("gpt-9", None, "codex")),
        ("own-model", ("Own-Model", None, "codex")),
        ("gpt-9-low", ("gpt-9", "low", "codex")),
        ("own-model-xh", ("Own-Model", "xhigh", "codex")),
        ("fast", ("gpt-9", None, "codex")),
        ("fast-high", ("gpt-9", "high", "codex")),
        ("unlisted", ("gpt-7-secret", None, "codex")),
        ("gpt-4.1", ("gpt-4.1", None, "codex")),
        ("o1", ("o1", None, "codex")),
        ("o3-mini-high", ("o3-mini", "high", "codex")),
        ("codex-mini-latest", ("codex-mini-latest", None, "codex")),
        ("Mock-Echo", ("mock-echo", None, "mock")),
        ("claude-sonnet-4-5", ("claude-sonnet-4-5", None, "claude")),
        ("sonnet", ("claude-sonnet-4-5-20250929", None, "claude")),
        ("Haiku", ("claude-haiku-4-5-20251001", None, "claude")),
        ("mixtral", ("mixtral", None, "groq")),
        ("llama-3", ("llama-3", None, "groq")),
        ("mine", ("claude-x", None, "claude")),
    ],
)
def test_a_name_leads_to_a_model_and_its_backend(name: str, choice: tuple[str, str | None, str]) -> None:
    """In any case, with or without an effort, by an alias, by who lists it, by its beginning."""
    aliases: dict[str, Any] = {"fast": "gpt-9", "unlisted": "gpt-7-secret", "mine": "claude-x"}
    names = router(Codex(), CLAUDE, GROQ, OFF, **aliases)
    assert names.resolve(name) == ModelChoice(name, *choice)
    assert names.backend(choice[2]).name == choice[2]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("claude-sonnet-4-5", "groq"),
        ("claude-opus-4", "claude"),
        ("claude-opus-4-mini", "codex"),
        ("gpt-oss-120b", "groq"),
        ("gpt-9", "codex"),
        ("anything-else", "groq"),
    ],
)
def test_the_longest_pattern_of_the_user_wins(name: str, backend: str) -> None:
    """Globs and prefixes together, whatever order they are written in; they go before all that is built in."""
    rules = {"*": "groq", "claude-opus*": "claude", "claude-": "groq", "claude-*-mini": "codex", "gpt-9": "codex"}
    for order in (list(rules), list(reversed(rules))):
        names = router(Codex(), CLAUDE, GROQ, rules={pattern: rules[pattern] for pattern in order})
        assert names.resolve(name) == ModelChoice(name, name, None, backend)


def test_an_alias_is_one_level_and_claims_nothing() -> None:
    """Its value is a model's name, not another alias; and the backend that serves the value does not own the name."""
    names = router(Codex(), CLAUDE, GROQ, a="b", b="gpt-9", odd="mixtral")
    assert names.resolve("b").effective == "gpt-9"
    assert names.resolve("a") == ModelChoice("a", "b", None, "codex")
    assert names.resolve("odd").backend == "groq"
    assert not names.backend("codex").knows("odd")


def test_patterns_among_the_aliases() -> None:
    """Exact ones first, then models that somebody offers, then the longest pattern, whatever order they stand in."""
    aliases = {"*": "llama-3", "old-*": "gpt-9", "old-*-mini": "mixtral", "old-fast": "Own-Model"}
    for order in (list(aliases), list(reversed(aliases))):
        names = Router(
            Other("mock"), [serve(Codex()), GROQ], default="codex", aliases={alias: aliases[alias] for alias in order}
        )
        for name, (model, effort) in {
            "OLD-fast": ("Own-Model", None),
            "old-fast-low": ("Own-Model", "low"),
            "old-4": ("gpt-9", None),
            "old-4-high": ("gpt-9", "high"),
            "old-4-mini": ("mixtral", None),
            "anything": ("llama-3", None),
            "gpt-9": ("gpt-9", None),
            "gpt-9-xh": ("gpt-9", "xhigh"),
            "mixtral": ("mixtral", None),
            "mock-echo": ("mock-echo", None),
        }.items():
            found = names.resolve(name)
            assert (found.requested, found.effective, found.effort) == (name, model, effort)
        assert [name for name in names.models() if "*" in name] == []
        assert {"pattern": "old-*", "backend": "codex", "model": "gpt-9"} in names.describe()["patterns"]


def test_aliases_that_lead_nowhere_are_named() -> None:
    """With the reason; where the default backend has listed nothing, it cannot be known."""
    aliases: dict[str, Any] = {
        "fast": "gpt-9",
        "lost": "gpt-7",
        "off": "gemini-2.5-pro",
        "fine": "claude-x",
        "echo": "mock-echo",
    }
    assert router(Codex(), CLAUDE, GROQ, OFF, **aliases).stray_aliases() == [
        ("lost", "gpt-7", "No backend offers this model."),
        ("off", "gemini-2.5-pro", "GEMINI_API_KEY is not set."),
    ]
    silent = Router(Other("mock"), [serve(Other("direct"))], default="direct", aliases={"a": "b"})
    assert silent.stray_aliases() == []


def test_a_provider_of_codex_is_chosen_by_its_name() -> None:
    """After the user's patterns and models, before what is built in or listed; also where another is the default."""
    other = serve(Other("other", "house/listed"), models=("house/named",))
    codex = serve(Other("app"), "app-server", providers=("house", "claude-house"))
    names = Router(
        Other("mock"),
        [other, codex],
        default="other",
        rules=[make_rule("house/ruled", "other")],
        aliases={"h": "house/x"},
    )
    for name, backend in {
        "house/x": "app",
        "HOUSE/x": "app",
        "h": "app",
        "claude-house/x": "app",
        "house/listed": "app",
        "house/named": "other",
        "house/ruled-1": "other",
    }.items():
        assert names.resolve(name).backend == backend
    assert {"pattern": "house/", "backend": "app"} in names.describe()["patterns"]
    for name in ("house/", "house", "nobody/x", "/x"):
        with pytest.raises(ModelNotFound):
            names.resolve(name)


def test_a_backend_without_its_key_is_passed_over() -> None:
    """It serves those who bring a key; the others are told why not."""
    names = router(Codex(), OFF)
    assert names.resolve("gemini-2.5-pro", keyed=True).backend == "off"
    with pytest.raises(ModelNotFound, match="GEMINI_API_KEY is not set"):
        names.resolve("gemini-2.5-pro")
    ruled = router(Codex(), OFF, GROQ, rules={"gem": "groq", "gemini-": "off"})
    assert ruled.resolve("gemini-2.5-pro").backend == "groq"
    assert names.describe()["off"] == {
        "off": "GEMINI_API_KEY is not set.",
        "anthropic": "ANTHROPIC_API_KEY is not set.",
    }


@pytest.mark.parametrize(("codex", "some"), [(Codex(), "gpt-9"), (None, "mock-echo")])
def test_an_unknown_name_is_told_some_that_exist(codex: Codex | None, some: str) -> None:
    """Without a Codex, the mock ones; and why a provider that is known by name is not there."""
    for name, why in (
        ("nobody", ""),
        ("claude-x", "ANTHROPIC_API_KEY is not set"),
        ("opus", "ANTHROPIC"),
    ):
        with pytest.raises(ModelNotFound) as caught:
            router(codex).resolve(name)
        assert some in caught.value.message
        assert why in caught.value.message


def test_a_default_that_takes_any_model_is_asked_last() -> None:
    """After every rule, and what the others list. A configured backend that lacks its key is told, not replaced."""
    names = router(Codex(any_model=True), GROQ, OFF, rules={"x-": "groq"})
    for name, backend in {
        "llama-3": "groq",
        "x-1": "groq",
        "mistral-medium": "codex",
        "meta/llama": "codex",
        "claude-x": "codex",
        "mock-echo": "mock",
    }.items():
        assert names.resolve(name) == ModelChoice(name, name, None, backend)
    with pytest.raises(ModelNotFound, match="GEMINI_API_KEY is not set"):
        names.resolve("gemini-2.5-pro")
    assert names.describe()["patterns"][-1] == {"pattern": "*", "backend": "codex"}
    assert router(Codex(any_model=True), lost="llama-4").stray_aliases() == []


@pytest.mark.parametrize("name", ["o1", "o1-pro", "o3", "o4-mini", "codex-mini", "gpt-4.1", "chatgpt-5"])
def test_a_default_over_http_takes_what_looks_like_its_own(name: str) -> None:
    """The direct client cannot list its models; what no pattern knows is refused all the same."""
    names = Router(Other("mock"), [serve(Other("direct"), "codex")], default="direct")
    assert names.resolve(name).backend == "direct"
    with pytest.raises(ModelNotFound):
        names.resolve("llama")


def test_all_names_are_listed_once() -> None:
    """What each backend offers, mock models, the user's aliases, built-in ones that lead somewhere."""
    assert router(Codex(), CLAUDE, GROQ, OFF, fast="gpt-9").models() == [
        "gpt-9",
        "Own-Model",
        "gpt-9-low",
        "llama-3",
        "mixtral",
        *MOCK_MODELS,
        "fast",
        "sonnet",
        "opus",
        "haiku",
    ]


@pytest.mark.parametrize("codex", [Codex(can_answer=False), None])
def test_models_that_cannot_answer_are_not_listed(codex: Codex | None) -> None:
    """Nobody is logged in, or there is no Codex at all."""
    assert router(codex, fast="gpt-9").models() == list(MOCK_MODELS)


async def test_only_a_name_of_the_default_waits_for_it(autojump_clock: Any) -> None:
    """A dead backend does not slow the others."""
    names = router(Codex(refuses=True, seconds=50), CLAUDE, GROQ, rules={"x-": "groq"})
    before = trio.current_time()
    for name in ("mock-text", "claude-x", "sonnet", "mixtral", "x-1"):
        await names.wait_for(name)
    assert trio.current_time() == before
    with pytest.raises(NotReady):
        await names.wait_for("gpt-9")
    await router(None).wait_for("gpt-9")


async def test_waiting_for_all_models_has_an_end(autojump_clock: Any) -> None:
    """It never fails, and takes no longer than told."""
    before = trio.current_time()
    await router(Codex(seconds=100), GROQ).wait_until_known(2)
    assert trio.current_time() - before == pytest.approx(2)
    await router(Codex(refuses=True)).wait_until_known(2)


async def test_rate_limits_are_the_defaults() -> None:
    """The mock models have none."""
    assert await router(Codex()).read_rate_limits() == {"planType": "plus"}
    assert await router(None).read_rate_limits() is None
