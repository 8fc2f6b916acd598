"""What the operator decides about turns in the child. None of it can be set by a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from bridge.turn.turn import Endpoint

ApprovalPolicy = Literal["untrusted", "on-failure", "on-request", "never"]
SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """Settings of the payloads, under the names of seed 003 (see `bridge.config` for where they come from)."""

    workdir: str = "/tmp/codex-work"  # noqa: S108 — the document's default; made private at start
    approval_policy: ApprovalPolicy = "never"
    sandbox_mode: SandboxMode = "read-only"
    include_apply_patch_tool: bool = False
    skip_turn: bool = False
    omit_tool_manifest: bool = False
    ignore_system_prompt: bool | None = None
    """None: the document's default, which drops chat's system messages in the legacy dialect alone."""
    legacy_calls: Literal["auto", "both", "turn", "message"] = "auto"
    native_tools: bool = False
    tool_mode: Literal["auto", "text", "native"] = "auto"
    web_search: Literal["off", "cached", "live"] = "off"
    enforce_max_tokens: bool = True
    """End an answer at the client's limit of tokens, because Codex has no limit."""
    kept_threads: int = 0
    """Conversations whose threads are kept for their next turns."""

    def narrowed(self, wishes: Mapping[str, str]) -> ChildSettings:
        """These settings for a turn that wants less than they allow (`Turn.narrowed`).

        It gets a thread of its own: what a thread may do is settled at its beginning.
        """
        if not wishes:
            return self
        names = {"sandbox": "sandbox_mode", "approval_policy": "approval_policy", "cwd": "workdir"}
        wanted: dict[str, Any] = {names[name]: value for name, value in wishes.items()}
        return replace(self, kept_threads=0, **wanted)

    def drops_system_prompt(self, endpoint: Endpoint, dialect: Literal["current", "legacy"]) -> bool:
        """Whether the client's system and developer messages are left out. Responses always keep theirs (seed 003)."""
        if endpoint != "chat":
            return False
        return dialect == "legacy" if self.ignore_system_prompt is None else self.ignore_system_prompt
