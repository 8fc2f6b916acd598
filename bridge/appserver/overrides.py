"""How Codex is kept small: the overrides that it is started with (`-c key=value`).

By default its own tools, prompts and calls home are off, so that the model sees the client's messages and nothing else,
and all of them: Codex must not cut an output, or replace a conversation with a summary, behind the client's back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

_OFF_FEATURES = (
    "shell_tool",
    "unified_exec",
    "shell_snapshot",
    "multi_agent",
    "goals",
    "view_image",
    "apps",
    "plugins",
    "skill_search",
    "image_generation",
    "sleep_tool",
    "tool_suggest",
    "hooks",
    "memories",
    "image_resize_notice",
)

_UNLIMITED = 10**9
"""Tokens. The provider knows its window and reports it in a way that agents understand; Codex would cut silently."""

_ALWAYS = {
    "check_for_update_on_startup": "false",
    "analytics.enabled": "false",
    # An ephemeral thread stays loaded this long after its turn; the default of a minute adds up.
    "thread_unload_delay_secs": "1",
}

_SMALL = {
    "tool_output_token_limit": str(_UNLIMITED),
    "web_search": '"disabled"',
    "project_doc_max_bytes": "0",
    "include_permissions_instructions": "false",
    "include_apps_instructions": "false",
    "include_collaboration_mode_instructions": "false",
    "include_environment_context": "false",
    "skills.include_instructions": "false",
    "skills.bundled.enabled": "false",
    "tools.experimental_request_user_input.enabled": "false",
    **{f"features.{name}": "false" for name in _OFF_FEATURES},
}


_WITHOUT_CATALOG = {
    "model_context_window": str(_UNLIMITED),
    "model_auto_compact_token_limit": str(_UNLIMITED),
    "model_verbosity": '"medium"',
}
"""For a Codex that cannot print its catalog (before about 0.120). The verbosity is the API's default, not Codex's."""


def build_overrides(
    *,
    native_tools: bool,
    catalog: Path | None = None,
    base_instructions: Path | None = None,
    switches: Mapping[str, str] | None = None,
) -> list[str]:
    """The `-c` arguments. `base_instructions` replaces Codex's prompt for payloads that leave it null (legacy).

    `switches` are further overrides, for settings that the child would find on its own.
    """
    values = dict(_ALWAYS)
    if not native_tools:
        values |= _SMALL
        values |= switches or {}
        values |= {"model_catalog_json": _toml_string(catalog)} if catalog is not None else _WITHOUT_CATALOG
        if base_instructions is not None:
            values["model_instructions_file"] = _toml_string(base_instructions)
    return list(_flags(values))


def shrink_catalog(catalog: dict[str, Any]) -> dict[str, Any]:
    """Codex's own model catalog with every model's prompt, tools and limits taken out.

    Most models are marked to get their tools inside a JavaScript tool (`code_mode_only`), with 20 kB of
    instructions; as entries with direct tools and no text they see what the client sends. Codex compacts a conversation
    by the window that stands here, and enlarges images for models that take them in original size.
    """
    models = [entry | _PLAIN for entry in catalog["models"]]
    return catalog | {"models": [*models, models[0] | _ANY_MODEL]}


_PLAIN: dict[str, Any] = {
    "base_instructions": "",
    "model_messages": None,
    "tool_mode": "direct",
    "apply_patch_tool_type": None,
    "use_responses_lite": False,
    "multi_agent_version": None,
    "experimental_supported_tools": [],
    "supports_search_tool": False,
    "context_window": _UNLIMITED,
    "max_context_window": _UNLIMITED,
    "auto_compact_token_limit": None,
    "default_verbosity": None,
    "supports_image_detail_original": False,
    # Codex leaves out a tier that a model does not list; whether the account has it, the provider knows.
    "service_tiers": [
        {"id": "priority", "name": "Fast", "description": ""},
        {"id": "flex", "name": "Flex", "description": ""},
    ],
}
_ANY_MODEL: dict[str, Any] = {
    # Codex takes the entry with the longest slug that a model's name begins with: this one fits all that have none.
    "slug": "",
    "display_name": "any other model",
    "description": None,
    "visibility": "none",
    "priority": 99,
    "default_reasoning_level": None,
    "supported_reasoning_levels": [],
    "default_reasoning_summary": "auto",
    "support_verbosity": True,
    "additional_speed_tiers": [],
    "upgrade": None,
    "availability_nux": None,
    "web_search_tool_type": "text",
}
"""As Codex describes a model that it does not know, except that a requested verbosity is sent."""

CATALOG_RULES = hashlib.sha256(orjson.dumps([_PLAIN, _ANY_MODEL])).hexdigest()
"""Changes with the rules above, so that a catalog made by other rules is not used."""


def _flags(values: dict[str, str]) -> Iterator[str]:
    for key, value in values.items():
        yield "-c"
        yield f"{key}={value}"


def _toml_string(path: Path) -> str:
    # A JSON string is a TOML basic string.
    return orjson.dumps(str(path)).decode()
