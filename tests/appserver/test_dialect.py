"""What the handshake shows about a child."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.appserver.dialect import (
    CLIENT_NAME,
    PROBE_METHOD,
    ChildInfo,
    choose_dialect,
    parse_methods,
    parse_user_agent,
    shake_hands,
)


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("turnbridge/0.107.0 (Linux; x86_64) xterm (turnbridge; 0.1.0)", ("0.107.0", True)),
        ("turnbridge/0.166.0-alpha.3 (Linux; x86_64)", ("0.166.0-alpha.3", True)),
        ("codex_cli_rs/0.79.0 (Linux; x86_64) xterm", ("0.79.0", True)),
        ("turnbridge/0.0.0 (a local build)", ("0.0.0", False)),
        ("turnbridge-standin/0.1.0 (stand-in)", ("0.1.0", False)),
        ("probe/0.107.0 (Linux; x86_64)", ("0.107.0", False)),
        ("turnbridge", (None, False)),
        ("turnbridge/next", (None, False)),
        ("", (None, False)),
        (None, (None, False)),
        (5, (None, False)),
    ],
)
def test_the_user_agent_tells_the_version_and_whether_it_is_codex(
    agent: object, expected: tuple[str | None, bool]
) -> None:
    """A real release repeats our name (or says codex_cli_rs); anything else is not taken for one."""
    assert parse_user_agent(agent) == expected


def test_our_name_survives_the_user_agent() -> None:
    """The name is one word, or its version could not be read back."""
    assert parse_user_agent(f"{CLIENT_NAME}/1.2.3 (x)") == ("1.2.3", True)


def test_the_refused_probe_lists_the_methods() -> None:
    """Codex names what it knows in backquotes; the probe itself is not among them."""
    refusal = (
        f"Invalid request: unknown variant `{PROBE_METHOD}`, expected one of `initialize`, `thread/start`, `turn/start`"
    )
    assert parse_methods(refusal) == {"initialize", "thread/start", "turn/start"}
    assert parse_methods("Method not found") == frozenset()


@pytest.mark.parametrize(
    ("wanted", "methods", "dialect"),
    [
        ("auto", {"turn/start", "newConversation"}, "current"),
        ("auto", {"turn/start"}, "current"),
        ("auto", {"newConversation"}, "legacy"),
        ("auto", set(), "legacy"),
        ("legacy", {"turn/start"}, "legacy"),
        ("current", {"newConversation"}, "current"),
    ],
)
def test_auto_prefers_the_current_dialect(wanted: str, methods: set[str], dialect: str) -> None:
    """`auto` is current where there is `turn/start`; a dialect that was asked for is taken as it is."""
    assert choose_dialect(wanted, frozenset(methods)) == dialect  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "is_codex", "dialect", "native"),
    [
        ("0.145.0", True, "current", True),
        ("0.163.0", True, "current", True),
        ("0.166.0-alpha.3", True, "current", True),
        ("1.0.0", True, "current", True),
        ("0.144.9", True, "current", False),
        ("0.107.0", True, "current", False),
        ("0.163.0", True, "legacy", False),
        ("0.163.0", False, "current", False),
        (None, False, "current", False),
    ],
)
def test_native_tools_need_a_codex_that_tells_when_the_calls_are_made(
    version: str | None, is_codex: bool, dialect: Any, native: bool
) -> None:
    """From 0.145 on, in the current dialect; no other program is trusted to."""
    assert ChildInfo(version, is_codex, dialect).has_native_tools is native


def test_items_can_be_injected_where_the_method_is_known() -> None:
    """Stateless mode needs `thread/inject_items`."""
    assert ChildInfo("0.163.0", True, "current", frozenset({"thread/inject_items"})).can_inject
    assert not ChildInfo("0.107.0", True, "current", frozenset({"turn/start"})).can_inject


@pytest.mark.parametrize(
    ("version", "is_codex", "needs"),
    [
        ("0.120.0", True, False),
        ("0.121.0", True, True),
        ("0.132.5", True, True),
        ("0.133.0-alpha.1", True, False),
        ("0.163.0", True, False),
        ("0.125.0", False, False),
        (None, False, False),
    ],
)
def test_some_versions_refuse_empty_input(version: str | None, is_codex: bool, needs: bool) -> None:
    """Those from 0.121 to 0.132; others take the history alone."""
    assert ChildInfo(version, is_codex, "current").needs_input is needs


@pytest.mark.parametrize("acts", [False, True])
async def test_a_child_with_its_own_tools_tells_what_it_begins(acts: bool) -> None:
    """Other children do not need it."""
    calls: list[tuple[str, Any]] = []

    async def call(method: str, params: Any) -> Any:
        calls.append((method, params))
        return {}

    await shake_hands(call, lambda _: None, "current", acts=acts)
    assert ("item/started" in calls[0][1]["capabilities"]["optOutNotificationMethods"]) is not acts
