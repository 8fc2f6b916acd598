"""Patterns of model names: which match, and which of them wins."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bridge.core.models import BUILT_IN_ALIASES, BUILT_IN_PATTERNS, DEFAULT, Rule, best_rule, make_rule

LETTERS = st.text("ab-.:/+()[]*?!^$\\|{} éßIi\n", max_size=8)
PATTERNS = LETTERS.filter(bool)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("claude-", ("claude-", "claude-x", "Claude-X"), ("claude", "my-claude-x", "")),
        ("o1", ("o1", "o1-pro", "O1", "o10"), ("o", "o3", "xo1")),
        ("*", ("", "a", "a/b", "a\nb"), ()),
        ("claude-*", ("claude-", "claude-x"), ("claude",)),
        ("*-mini", ("o4-mini", "-mini"), ("o4-mini-2",)),
        ("gpt-?", ("gpt-4", "gpt-é"), ("gpt-", "gpt-41")),
        ("gpt-[45]*", ("gpt-4", "gpt-5.2"), ("gpt-3", "gpt-")),
        ("gpt-[!45]", ("gpt-3",), ("gpt-4", "gpt-")),
        ("gpt-[A-C]", ("gpt-a", "gpt-B"), ("gpt-d",)),
        ("a[", ("a[",), ("a", "ab", "a[b")),
        ("a[*", ("a[", "a[b"), ("a", "ab")),
        ("a[[]b", ("a[b",), ("ab", "a[[]b")),
        ("qwen3:8b", ("qwen3:8b", "qwen3:8b-q4"), ("qwen3:8", "qwen3-8b")),
        ("meta-llama/", ("meta-llama/Llama-3.3",), ("meta-llama", "metaXllama/")),
        ("a.b", ("a.b", "a.bc"), ("axb",)),
        ("a+(b)|c$^{2}\\", ("a+(b)|c$^{2}\\", "a+(b)|c$^{2}\\x"), ("aab", "c", "a+(b)")),
        ("STRASSE", ("strasse-1",), ("straße",)),
        ("É", ("é", "éa"), ("e",)),
    ],
)
def test_a_pattern_is_a_glob_or_a_prefix(pattern: str, matching: tuple[str, ...], others: tuple[str, ...]) -> None:
    """Case does not matter, and no other character means anything."""
    rule = make_rule(pattern, "a")
    assert [name for name in matching if best_rule(name, [rule]) is not rule] == []
    assert [name for name in others if best_rule(name, [rule]) is not None] == []


@pytest.mark.parametrize(
    ("name", "winner"),
    [
        ("claude-opus-4-5", "claude-opus*"),
        ("claude-sonnet", "claude-"),
        ("claude-opus-4-mini", "claude-*-mini"),
        ("cl", "*"),
        ("gpt-5", "gpt-"),
        ("gpt-5o", "gpt-?o"),
    ],
)
def test_the_longest_match_wins(name: str, winner: str) -> None:
    """What counts is how many characters a pattern fixes."""
    patterns = ["*", "claude-", "claude-opus*", "claude-*-mini", "gpt-", "gpt-?o"]
    for order in (patterns, patterns[::-1]):
        found = best_rule(name, [make_rule(pattern, pattern) for pattern in order])
        assert found is not None
        assert found.pattern == winner


def test_of_equals_the_first_wins() -> None:
    """So the file alone decides, each time in the same way."""
    rules = [make_rule("ab*", "first"), make_rule("ab", "second"), make_rule("*ab", "third")]
    assert best_rule("ab", rules) is rules[0]
    assert best_rule("ab", rules[::-1]) is rules[2]
    assert best_rule("ab", ()) is None


@given(LETTERS, st.lists(PATTERNS, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_the_order_does_not_matter_where_one_fixes_most(name: str, patterns: list[str], random: object) -> None:
    """Nor does the number of times that one asks."""
    rules = [make_rule(pattern, f"backend-{number}") for number, pattern in enumerate(patterns)]
    matching = [rule for rule in rules if best_rule(name, [rule])]
    found = best_rule(name, rules)
    assert found is best_rule(name, iter(rules))
    assert (found is None) == (not matching)
    if found is not None:
        assert found in matching
        assert found.weight == max(rule.weight for rule in matching)
        assume([rule.weight for rule in matching].count(found.weight) == 1)
        shuffled = list(rules)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        assert best_rule(name, shuffled) is found


@given(st.text(max_size=12), st.text(min_size=1, max_size=8))
def test_any_text_is_a_pattern(name: str, pattern: str) -> None:
    """It matches or not, alike in every case, and never fails."""
    rule = make_rule(pattern, "a")
    assert isinstance(best_rule(name, [rule]), Rule | None)
    assert (best_rule(name, [rule]) is None) == (best_rule(name.lower(), [rule]) is None)
    assert rule.weight <= len(pattern)


@given(st.text(st.characters(exclude_characters="*?["), min_size=1, max_size=8), st.text(max_size=8))
def test_a_pattern_without_signs_is_a_prefix(prefix: str, rest: str) -> None:
    """Whatever else stands in it."""
    assert (
        best_rule(prefix + rest, [make_rule(prefix, "a")]) is not None
        or (prefix + rest).lower()[: len(prefix.lower())] != prefix.lower()
    )  # a letter may change with its neighbours (Σ)


@pytest.mark.parametrize("pattern", ["gpt-[0123456789]*", "gpt-[!abcdefgh]*"])
def test_brackets_fix_one_character_however_long_they_are(pattern: str) -> None:
    """`gpt-5-turbo` says more than any glob of four letters and a digit."""
    for rules in ((pattern, "gpt-5-turbo"), ("gpt-5-turbo", pattern)):
        found = best_rule("gpt-5-turbo", [make_rule(each, each) for each in rules])
        assert found is not None
        assert found.pattern == "gpt-5-turbo"


def test_a_pattern_takes_no_time_to_refuse_a_name() -> None:
    """Many stars in a row are no trap."""
    assert best_rule("a" * 256, [make_rule("*a" * 60 + "b", "x")]) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt-5.2-codex", DEFAULT),
        ("o1", DEFAULT),
        ("o1-pro", DEFAULT),
        ("O3", DEFAULT),
        ("o4-mini-high", DEFAULT),
        ("codex-mini-latest", DEFAULT),
        ("claude-sonnet-4-5", "anthropic"),
        ("Gemini-2.5-pro", "gemini"),
        ("o4", None),
        ("o2", None),
        ("gpt", None),
        ("llama-3", None),
        ("", None),
    ],
)
def test_built_in_names(name: str, kind: str | None) -> None:
    """Those of the three providers that most have."""
    found = best_rule(name, [make_rule(pattern, kind) for pattern, kind in BUILT_IN_PATTERNS])
    assert (found.target if found is not None else None) == kind


def test_built_in_aliases_lead_to_built_in_patterns() -> None:
    """And are lower case, as they are looked up."""
    rules = [make_rule(pattern, kind) for pattern, kind in BUILT_IN_PATTERNS]
    for alias, target in BUILT_IN_ALIASES.items():
        assert alias == alias.lower()
        assert best_rule(target, rules) is not None
        assert target not in BUILT_IN_ALIASES
