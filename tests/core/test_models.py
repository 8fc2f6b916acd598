"""Model names and the effort they imply (payloads §6)."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core.models import DEFAULT_MODEL, ModelChoice, effort_in_name, resolve_model
from bridge.protocols.chat.request import parse_chat
from bridge.protocols.responses.request import parse_responses

SHORT = {"l": "low", "m": "medium", "h": "high", "xh": "xhigh"}
LONG = {effort: effort for effort in SHORT.values()}
SUFFIXES = SHORT | LONG


def resolve(name: str, known: tuple[str, ...] = (), **options: Any) -> ModelChoice | None:
    return resolve_model(name, known=known, default="the-default", **options)


@pytest.mark.parametrize("family", ["gpt-5.2", "gpt-5.2-codex", "gpt-5.2-codev"])
@pytest.mark.parametrize(("suffix", "effort"), SUFFIXES.items())
@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_a_suffix_implies_the_effort(family: str, suffix: str, effort: str, spell: Any) -> None:
    """All families with a suffix are gpt-5.2 with that effort, in any spelling; the client's own is echoed."""
    name = spell(f"{family}-{suffix}")
    assert resolve(name) == ModelChoice(name, "gpt-5.2", effort)


@pytest.mark.parametrize(
    ("name", "effective", "effort"),
    [
        ("gpt-5.2", "gpt-5.2", None),
        ("GPT-5.2", "gpt-5.2", None),
        ("gpt-5.2-codex", "gpt-5.2-codex", None),
        ("GPT-5.2-Codex", "gpt-5.2-codex", None),
        ("gpt-5.2-codev", "gpt-5.2", None),
        ("codex-5", "the-default", None),
        ("CODEX-5", "the-default", None),
        ("codex-5-high", "the-default", "high"),
        ("Codex-5-XH", "the-default", "xhigh"),
    ],
)
def test_the_aliases(name: str, effective: str, effort: str | None) -> None:
    """A bare gpt-5.2-codex is its own model; codex-5 is whatever the backend's default is."""
    assert resolve(name) == ModelChoice(name, effective, effort)


@pytest.mark.parametrize("name", ["", "gpt-9", "gpt-9-high", "-high", "high", "-l", "gpt-5.2-", "gpt-5.2-huge", "../x"])
def test_an_unknown_name_is_nothing(name: str) -> None:
    """Nothing is guessed."""
    assert resolve(name) is None


def test_a_known_model_is_found_without_regard_to_case() -> None:
    """The backend gets its own spelling, the client hears its own."""
    assert resolve("MY-Model", ("my-model",)) == ModelChoice("MY-Model", "my-model")
    assert resolve("my-model", ("My-Model",)) == ModelChoice("my-model", "My-Model")


def test_a_known_model_with_a_suffix_implies_the_effort() -> None:
    """The suffixes work on every model that the backend lists."""
    assert resolve("My-Model-XHIGH", ("my-model",)) == ModelChoice("My-Model-XHIGH", "my-model", "xhigh")


def test_a_known_model_wins_over_aliases_and_suffixes() -> None:
    """A listed model whose name looks like an alias or ends like a suffix is that model."""
    known = ("gpt-5.2-codev-l", "mini-m", "codex-5")
    assert resolve("gpt-5.2-codev-L", known) == ModelChoice("gpt-5.2-codev-L", "gpt-5.2-codev-l")
    assert resolve("mini-m", known) == ModelChoice("mini-m", "mini-m")
    assert resolve("codex-5", known) == ModelChoice("codex-5", "codex-5")
    assert resolve("mini-m-l", known) == ModelChoice("mini-m-l", "mini-m", "low")


def test_an_effort_that_a_model_lists_is_its_suffix() -> None:
    """Only that model's: names of models end in `-max` and `-none`."""
    efforts = {"sol": ("low", "max", "none"), "luna": ("low",)}
    known = ("sol", "luna", "luna-max")
    assert resolve("Sol-MAX", known, efforts=efforts) == ModelChoice("Sol-MAX", "sol", "max")
    assert resolve("sol-none", known, efforts=efforts) == ModelChoice("sol-none", "sol", "none")
    assert resolve("luna-max", known, efforts=efforts) == ModelChoice("luna-max", "luna-max")
    for name in ("luna-none", "sol-ultra", "sol-", "-max", "sol-low-max"):
        assert resolve(name, known, efforts=efforts) is None
    # The aliases of the default model have that model's efforts.
    assert resolve("codex-5-max", efforts={"the-default": ("max",)}) == ModelChoice("codex-5-max", "the-default", "max")


def test_the_table_can_be_another() -> None:
    """Aliases are configuration; the default's placeholder works in any of them."""
    table = {"Fast": "mini", "Best": DEFAULT_MODEL}
    assert resolve("fast-h", aliases=table) == ModelChoice("fast-h", "mini", "high")
    assert resolve("BEST", aliases=table) == ModelChoice("BEST", "the-default")
    assert resolve("gpt-5.2", aliases=table) is None


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("x-xhigh", ("x", "xhigh")),
        ("x-high", ("x", "high")),
        ("X-XH", ("X", "xhigh")),
        ("x-l-m", ("x-l", "medium")),
        ("x", ("x", None)),
        ("-high", ("-high", None)),
        ("xhigh", ("xhigh", None)),
        ("", ("", None)),
    ],
)
def test_one_suffix_is_split_off(name: str, split: tuple[str, str | None]) -> None:
    """The longest suffix, once, and never the whole name."""
    assert effort_in_name(name) == split


def known_alias(name: str) -> ModelChoice:
    choice = resolve(name)
    assert choice is not None
    return choice


@pytest.mark.parametrize(("explicit", "effort"), [(None, "low"), ("high", "high"), ("minimal", "minimal")])
def test_an_explicit_effort_wins(explicit: str | None, effort: str) -> None:
    """What the request says goes before what the model's name implies; the alias is echoed."""
    chat: dict[str, Any] = {"model": "gpt-5.2-codev-l", "messages": [{"role": "user", "content": "hi"}]}
    responses: dict[str, Any] = {"model": "gpt-5.2-codev-l", "input": "hi"}
    if explicit is not None:
        chat["reasoning_effort"] = explicit
        responses["reasoning"] = {"effort": explicit}
    for parsed in (parse_chat(chat), parse_responses(responses)):
        turn = parsed.for_model(known_alias(parsed.model))
        assert (turn.effort, turn.model, turn.requested_model) == (effort, "gpt-5.2", "gpt-5.2-codev-l")
