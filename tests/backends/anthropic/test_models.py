"""What a model takes is told by its name, however that is written."""

from __future__ import annotations

import pytest

from bridge.protocols.messages.models import traits_of


@pytest.mark.parametrize(
    ("model", "thinking", "off", "sampling", "forced", "bound"),
    [
        ("claude-3-opus-20240229", "none", "omit", True, True, False),
        ("claude-3-5-sonnet-20241022", "none", "omit", True, True, False),
        ("claude-3-7-sonnet-latest", "budget", "omit", True, True, False),
        ("claude-opus-4-20250514", "budget", "omit", True, True, False),
        ("claude-opus-4-1-20250805", "budget", "omit", True, True, False),
        ("claude-sonnet-4-5-20250929", "budget", "omit", True, True, False),
        ("claude-haiku-4-5", "budget", "omit", True, True, False),
        ("claude-opus-4-6", "adaptive", "omit", True, True, False),
        ("claude-sonnet-4-6", "adaptive", "omit", True, True, False),
        ("claude-opus-4-7", "adaptive", "omit", False, True, False),
        ("claude-opus-4-8[1m]", "adaptive", "omit", False, True, False),
        ("claude-opus-5", "adaptive", "disabled", False, True, False),
        ("claude-sonnet-5", "adaptive", "disabled", False, True, False),
        ("claude-haiku-5-5", "adaptive", "disabled", False, True, True),
        ("claude-sonnet-5-5", "adaptive", "between_tools", False, False, True),
        ("claude-opus-5-5", "adaptive", "never", False, False, True),
        ("claude-fable-5", "adaptive", "never", False, True, False),
        ("claude-mythos-5-1", "adaptive", "never", False, False, True),
        ("claude-opus-7", "adaptive", "never", False, False, True),
        # What nobody here has heard of takes the least.
        ("claude-epic-6", "adaptive", "never", False, False, True),
        ("claude-mythos-preview", "adaptive", "never", False, False, True),
        # Others imitate the old ones.
        ("glm-4.6", "budget", "omit", True, True, False),
    ],
)
def test_what_a_model_takes(model: str, thinking: str, off: str, sampling: bool, forced: bool, bound: bool) -> None:
    for name in (model, model.upper(), f"anthropic/{model}", f"us.anthropic.{model}-v1:0"):
        traits = traits_of(name)
        assert (traits.thinking, traits.off, traits.sampling) == (thinking, off, sampling)
        assert (traits.forced_choice, traits.bound) == (forced, bound)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("claude-opus-4.7", "claude-opus-4-7"),
        ("claude-4.7-opus", "claude-opus-4-7"),
        ("claude-4-5-sonnet", "claude-sonnet-4-5"),
    ],
)
def test_the_same_model_by_another_name(one: str, other: str) -> None:
    assert traits_of(one) == traits_of(other)


@pytest.mark.parametrize(
    ("model", "most"),
    [
        ("claude-3-haiku-20240307", 4096),
        ("claude-3-5-haiku-latest", 8192),
        ("claude-opus-4-1", 32_000),
        ("claude-sonnet-4-5", 64_000),
        ("claude-opus-4-6", 128_000),
        ("claude-haiku-5-5", 128_000),
    ],
)
def test_the_usual_limit_is_within_what_the_model_can(model: str, most: int) -> None:
    assert 4096 <= traits_of(model).max_tokens <= most
