"""A CODEX_HOME as people have it: instructions, memories, skills, MCP servers, hooks, a program to notify."""

from __future__ import annotations

import json
from pathlib import Path

MARK = "LEAK"
"""Part of every text in it that the model must not see."""


def fill(home: Path) -> Path:
    """Put everything into a home; the file that each program in it writes to when it is run."""
    ran = home.parent / "ran"
    program = home.parent / "program"
    program.write_text(f'#!/bin/sh\necho "$@" >>{ran}\ncat >/dev/null\n')
    program.chmod(0o755)
    config = (home / "config.toml").read_text()
    (home / "config.toml").write_text(f"{_first(program)}\n{config}\n{_tables(program)}")
    for name in ("AGENTS.md", "AGENTS.override.md", "memories/MEMORY.md", "memories/memory_summary.md", "prompts/p.md"):
        _write(home / name, f"{MARK} {name}\n")
    _write(home / "skills/s/SKILL.md", f"---\nname: s\ndescription: {MARK} skill\n---\n{MARK} skill\n")
    _write(home / "rules/default.rules", f"# {MARK}\n")
    hook = [{"hooks": [{"type": "command", "command": f"{program} hook"}]}]
    events = ("SessionStart", "UserPromptSubmit", "Stop")
    _write(home / "hooks.json", json.dumps({"hooks": dict.fromkeys(events, hook)}))
    return ran


def _first(program: Path) -> str:
    return f"""\
developer_instructions = "{MARK} developer instructions"
notify = ["{program}", "notify"]
service_tier = "fast"
model_verbosity = "high"
model_reasoning_effort = "high"
personality = "friendly"
"""


def _tables(program: Path) -> str:
    return f"""\
memories = true

[mcp_servers.{MARK.lower()}]
command = "{program}"
args = ["mcp"]

[profiles.other]
developer_instructions = "{MARK} profile"
"""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
