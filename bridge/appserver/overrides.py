"""How Codex is kept small: the overrides that it is started with (`-c key=value`).

By default its own tools, prompts and calls home are off, so that the model sees the client's messages and nothing else.
They are given on the command line; the user's CODEX_HOME is read as it is and never written.
"""

from __future__ import annotations

from collections.abc import Iterator
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
)

_ALWAYS = {
    "check_for_update_on_startup": "false",
    "analytics.enabled": "false",
    # An ephemeral thread stays loaded this long after its turn; the default of a minute adds up.
    "thread_unload_delay_secs": "5",
}

_SMALL = {
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


def build_overrides(
    *, native_tools: bool, catalog: Path | None = None, base_instructions: Path | None = None
) -> list[str]:
    """The `-c` arguments. `base_instructions` replaces Codex's prompt for payloads that leave it null (legacy)."""
    values = dict(_ALWAYS)
    if not native_tools:
        values |= _SMALL
        if catalog is not None:
            values["model_catalog_json"] = _toml_string(catalog)
        if base_instructions is not None:
            values["model_instructions_file"] = _toml_string(base_instructions)
    return list(_flags(values))


def shrink_catalog(catalog: dict[str, Any]) -> dict[str, Any]:
    """Codex's own model catalog with every model's prompt and tools taken out.

    Most models are marked to get their tools inside a JavaScript tool (`code_mode_only`), with 20 kB of
    instructions; as entries with direct tools and no text they see what the client sends.
    """
    models = [
        entry
        | {
            "base_instructions": "",
            "model_messages": None,
            "tool_mode": "direct",
            "apply_patch_tool_type": None,
            "use_responses_lite": False,
            "multi_agent_version": None,
            "experimental_supported_tools": [],
            "supports_search_tool": False,
        }
        for entry in catalog["models"]
    ]
    return catalog | {"models": models}


def _flags(values: dict[str, str]) -> Iterator[str]:
    for key, value in values.items():
        yield "-c"
        yield f"{key}={value}"


def _toml_string(path: Path) -> str:
    # A JSON string is a TOML basic string.
    return orjson.dumps(str(path)).decode()
