"""What a child speaks and can do: the methods of the two dialects, the handshake, its models, its login. No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bridge import __version__
from bridge.appserver.failures import METHOD_NOT_FOUND, RpcError
from bridge.errors import BridgeError

if TYPE_CHECKING:
    pass

Dialect = Literal["current", "legacy"]
WantedDialect = Literal["auto", "current", "legacy"]

CLIENT_NAME = "turnbridge"
"""Our name in the handshake; the child repeats it in its user agent, so it holds no blank and no slash."""

PROBE_METHOD = "bridge/probe"
"""A method that no server has: the refusal of a real Codex lists all those that it has."""

# The one table of what methods mean for a thread and its turns. The dialects, the stand-in, the event log and replay
# all read it.

BEGINS: dict[str, Dialect] = {
    "thread/start": "current",
    "thread/resume": "current",
    "thread/fork": "current",
    "newConversation": "legacy",
    "resumeConversation": "legacy",
}
"""Calls that create a thread, and the dialect of each."""

PARTS = frozenset({"thread/inject_items"})
"""Calls that add to the input of a turn."""

PROMPTS = frozenset(
    {"turn/start", "turn/steer", "review/start", "thread/compact/start", "sendUserTurn", "sendUserMessage"}
)
"""Calls that make the model answer."""

STOPS = frozenset({"turn/interrupt", "interruptConversation"})
"""Calls that interrupt a turn."""

STARTS = frozenset({"turn/started", "codex/event/task_started"})
ENDS = frozenset({"turn/completed", "codex/event/task_complete", "codex/event/turn_aborted"})
"""Notifications that begin a turn, and that end it."""

COUNTS = frozenset({"thread/tokenUsage/updated", "codex/event/token_count", "resumeConversation"})
"""Notifications, and a reply, with the number of tokens that a thread has used."""

_LEGACY = frozenset({"addConversationListener", "sendUserTurn", "sendUserMessage"})


def dialect_of(method: str) -> Dialect:
    """The dialect of a call or a notification about a turn."""
    is_legacy = method in _LEGACY or method.startswith("codex/event")
    return BEGINS.get(method, "legacy" if is_legacy else "current")


TOOL_CALL = "item/tool/call"
"""The child's request for the output of a client's function."""

# fmt: off
OPT_OUT = {
    # They say nothing that we use; where Codex has its own tools, `item/started` does.
    "current": [
        "warning", "deprecationNotice", "remoteControl/status/changed", "thread/started", "thread/status/changed",
        "thread/readState/changed", "item/started",
    ],
    # The second and third spelling of what `codex/event/*` says once, and what we do not use.
    "legacy": [
        "item/started", "item/completed", "item/agentMessage/delta", "item/reasoning/summaryPartAdded",
        "item/reasoning/summaryTextDelta", "item/reasoning/textDelta", "thread/started", "thread/status/changed",
        "thread/tokenUsage/updated", "turn/started", "turn/completed", "error", "deprecationNotice",
        "codex/event/agent_message_delta", "codex/event/agent_reasoning_delta",
        "codex/event/agent_reasoning_raw_content_delta", "codex/event/agent_reasoning",
        "codex/event/agent_reasoning_raw_content", "codex/event/item_started", "codex/event/user_message",
        "codex/event/deprecation_notice", "codex/event/mcp_startup_complete",
    ],
}
# fmt: on
"""The notifications that we ask the child not to send."""

_UNUSED = (
    "item/commandExecution/outputDelta", "item/fileChange/outputDelta", "item/fileChange/patchUpdated",
    "item/mcpToolCall/progress", "item/plan/delta", "command/exec/outputDelta", "process/outputDelta",
    "thread/started", "turn/diff/updated", "turn/plan/updated", "codex/event/exec_command_output_delta",
    "codex/event/exec_command_end", "codex/event/turn_diff",
)  # fmt: skip
UNUSED = tuple(b'{"method":"%b"' % method.encode() for method in _UNUSED)
"""How notifications begin that may be large, and that no turn reads: outputs of commands, diffs, plans."""

_FIRST_WORD = re.compile(r"^([^ /]*)/(\d+\.\d+\.\d+\S*)")
_QUOTED = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class ChildInfo:
    """The outcome of the handshake."""

    version: str | None
    is_codex: bool
    """A real Codex release, which treats `sendUserTurn` followed by `sendUserMessage` as two prompts."""
    dialect: Dialect
    methods: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def can_inject(self) -> bool:
        """Whether the history can be given item by item (stateless mode)."""
        return "thread/inject_items" in self.methods

    @property
    def needs_input(self) -> bool:
        """Whether it refuses a turn with empty input, although the history was given item by item."""
        return (0, 121) <= self._release <= (0, 132)

    @property
    def has_native_tools(self) -> bool:
        """Whether it accepts functions, and reports when a response of the provider is complete (0.145 and later)."""
        return self.dialect == "current" and self._release >= (0, 145)

    @property
    def recommends_native_tools(self) -> bool:
        """Whether native tools come without any of Codex's own: before 0.155 two of these cannot be switched off."""
        return self.has_native_tools and self._release >= (0, 155)

    @property
    def _release(self) -> tuple[int, int]:
        """The version of a real Codex."""
        return _numbers(self.version) if self.is_codex and self.version is not None else (0, 0)


def parse_user_agent(user_agent: object) -> tuple[str | None, bool]:
    """(version, is a real Codex release) out of `initialize`'s `userAgent`."""
    found = _FIRST_WORD.match(user_agent) if isinstance(user_agent, str) else None
    if found is None:
        return None, False
    name, version = found.groups()
    # Codex up to 0.79 names itself, later ones repeat our name. A local build says 0.0.0.
    return version, name in (CLIENT_NAME, "codex_cli_rs") and version != "0.0.0"


def parse_methods(refusal: str) -> frozenset[str]:
    """The methods that the refusal of the probe lists; empty when it lists none."""
    return frozenset(_QUOTED.findall(refusal)) - {PROBE_METHOD}


def choose_dialect(wanted: WantedDialect, methods: frozenset[str], version: str | None = None) -> Dialect:
    """`auto` is current where the child has a `turn/start` that works, else legacy.

    `version` is that of a real Codex: before 0.79 its turns never ended.
    """
    if wanted != "auto":
        return wanted
    too_old = "newConversation" in methods and version is not None and _numbers(version) < (0, 79)
    return "current" if "turn/start" in methods and not too_old else "legacy"


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def key_of(params: Any) -> str | None:
    """The thread or conversation that a message is about, in either dialect."""
    if not isinstance(params, dict):
        return None
    key = params.get("threadId") or params.get("conversationId")
    return key if isinstance(key, str) else None


# The handshake

CallChild = Callable[[str, Any], Awaitable[Any]]
"""Makes one call. Raises BridgeError; RpcError where the child answers with an error."""


async def shake_hands(
    call: CallChild, notify: Callable[[str], None], wanted: WantedDialect, *, acts: bool = False
) -> ChildInfo:
    """Introduce ourselves and choose the dialect. Raises what `call` raises.

    A child that `acts` has its own tools, so it must report what it begins with them.
    """
    # We opt out of notifications before the dialect is known: for `auto`, only of those that neither dialect needs.
    first, *others = OPT_OUT.values() if wanted == "auto" else [OPT_OUT[wanted]]
    common = [name for name in first if all(name in other for other in others)]
    unused = [name for name in common if not (acts and name == "item/started")]
    capabilities = {"experimentalApi": True, "optOutNotificationMethods": unused}
    client = {"name": CLIENT_NAME, "title": "Turnbridge", "version": __version__}
    result = await call("initialize", {"clientInfo": client, "capabilities": capabilities})
    notify("initialized")
    version, is_codex = parse_user_agent(result.get("userAgent") if isinstance(result, dict) else None)
    methods = await _probe(call)
    return ChildInfo(version, is_codex, choose_dialect(wanted, methods, version if is_codex else None), methods)


async def _probe(call: CallChild) -> frozenset[str]:
    """The methods that the child knows."""
    try:
        await call(PROBE_METHOD, {})
    except RpcError as error:
        if methods := parse_methods(error.rpc_message):
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


# The account

Login = Literal["logged_in", "not_needed", "missing"]

ACCOUNT_CHANGES = ("account/updated", "account/login/completed")
"""Notifications after which the models and the login are read again."""
RATE_LIMITS = "account/rateLimits/updated"


class Account:
    """The child's models, login and quota; known after `refresh`, which is called again when they may have changed."""

    def __init__(self, call: CallChild) -> None:
        self.models: list[dict[str, Any]] = []
        self.login: Login | None = None
        """None where it cannot be known."""
        self.rate_limits: dict[str, Any] = {}
        """The account's quota as last reported; empty before that."""
        self.methods: frozenset[str] = frozenset()
        """What the child can answer."""
        self._call = call
        self._login_asked = -math.inf

    async def refresh(self) -> None:
        """Read the models and the login. Raises BridgeError when the child does not answer."""
        if "model/list" in self.methods:
            with suppress(RpcError, KeyError, TypeError, AttributeError):
                result = await self._call("model/list", {})
                models = [entry for entry in result["data"] if isinstance(entry.get("id"), str)]
                self.models = models or self.models
        await self._read_login()

    async def check_login(self, now: float) -> Login | None:
        """The login as it is now. A missing login is read again, at most once a second."""
        if self.login == "missing" and now >= self._login_asked + 1:
            self._login_asked = now
            await self._read_login()
        return self.login

    async def read_rate_limits(self) -> dict[str, Any]:
        """The quota as it is now, if the child can report it; else the last report."""
        if "account/rateLimits/read" in self.methods:
            with suppress(BridgeError):
                result = await self._call("account/rateLimits/read", None)
                self.learn_limits(result if isinstance(result, dict) else {})
        return self.rate_limits

    def learn_limits(self, params: dict[str, Any]) -> None:
        """Merge an update, which may omit what has not changed."""
        limits = params.get("rateLimits")
        if isinstance(limits, dict):
            self.rate_limits |= {name: value for name, value in limits.items() if value is not None}

    async def _read_login(self) -> None:
        login: Login | None = None
        if "account/read" in self.methods:
            with suppress(RpcError, KeyError, TypeError):
                account = await self._call("account/read", {})
                if account["account"] is not None:
                    login = "logged_in"
                else:
                    login = "missing" if account["requiresOpenaiAuth"] else "not_needed"
        self.login = login
