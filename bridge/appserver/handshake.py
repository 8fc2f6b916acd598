"""The first words with a child: who we are, what it can do, which models it has, whether it is logged in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from bridge import __version__
from bridge.appserver import current, legacy
from bridge.appserver.dialect import (
    CLIENT_NAME,
    PROBE_METHOD,
    ChildInfo,
    choose_dialect,
    parse_methods,
    parse_user_agent,
)
from bridge.appserver.rpc import METHOD_NOT_FOUND, RpcError

Login = Literal["logged_in", "not_needed", "missing"]
AskChild = Callable[[str, Any], Awaitable[Any]]

OPT_OUT = {
    "current": current.OPT_OUT,
    "legacy": legacy.OPT_OUT,
    # Notifications are opted out of before the dialect is known: only what neither needs.
    "auto": tuple(name for name in current.OPT_OUT if name in legacy.OPT_OUT),
}


async def shake_hands(
    call: AskChild,
    notify: Callable[[str], None],
    wanted: Literal["auto", "current", "legacy"],
    *,
    acts: bool = False,
) -> ChildInfo:
    """Introduce ourselves and choose the dialect. Raises what `call` raises.

    A child that `acts` has its own tools: what it begins with them is to be told.
    """
    unused = [name for name in OPT_OUT[wanted] if not (acts and name == "item/started")]
    capabilities = {"experimentalApi": True, "optOutNotificationMethods": unused}
    client = {"name": CLIENT_NAME, "title": "Codex bridge", "version": __version__}
    result = await call("initialize", {"clientInfo": client, "capabilities": capabilities})
    notify("initialized")
    version, is_codex = parse_user_agent(result.get("userAgent") if isinstance(result, dict) else None)
    methods = await _probe(call)
    return ChildInfo(version, is_codex, choose_dialect(wanted, methods, version if is_codex else None), methods)


async def ask_models(call: AskChild, info: ChildInfo) -> list[dict[str, Any]]:
    """The models that the child lists; none where it cannot tell."""
    if "model/list" not in info.methods:
        return []
    try:
        result = await call("model/list", {})
        return [entry for entry in result["data"] if isinstance(entry.get("id"), str)]
    except (RpcError, KeyError, TypeError, AttributeError):
        return []


async def ask_login(call: AskChild, info: ChildInfo) -> Login | None:
    """Whether turns can run. None where the child cannot tell."""
    if "account/read" not in info.methods:
        return None
    try:
        account = await call("account/read", {})
        if account["account"] is not None:
            return "logged_in"
        return "missing" if account["requiresOpenaiAuth"] else "not_needed"
    except (RpcError, KeyError, TypeError):
        return None


async def _probe(call: AskChild) -> frozenset[str]:
    """The methods that the child knows."""
    try:
        await call(PROBE_METHOD, {})
    except RpcError as error:
        methods = parse_methods(error.rpc_message)
        if methods:
            return methods
    # Not a Codex: ask for what matters, one by one. Only "method not found" means that it is not there.
    known = set()
    for method in ("newConversation", "turn/start", "thread/inject_items", "model/list"):
        try:
            await call(method, {})
        except RpcError as error:
            if error.rpc_code == METHOD_NOT_FOUND:
                continue
        known.add(method)
    return frozenset(known)
