"""A child that writes down every line that it is sent, and then does what the client's message says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from server.prompted import prompted_codex, wait_for

Json = dict[str, Any]
STARTS = ("thread/start", "newConversation")
LAST = {"current": "turn/start", "legacy": "sendUserMessage"}
"""The last call of a turn, by dialect (a legacy one with PROXY_LEGACY_CALLS=both)."""


class Notes:
    """What a child was sent, turn by turn. `program` is to be used as CODEX_BIN."""

    def __init__(self, directory: Path, dialect: str) -> None:
        self._stdin = directory / "stdin.ndjson"
        self._last = LAST[dialect]
        self._seen = 0
        child = prompted_codex(directory, dialect)
        self.program = directory / "noting-codex"
        self.program.write_text(f'#!/bin/sh\ntee -a {self._stdin} | exec {child} "$@"\n')
        self.program.chmod(0o755)

    def new(self) -> list[Json]:
        """The messages since the last look."""
        whole = self._stdin.read_bytes().split(b"\n")[:-1]  # the last line may still be written
        new, self._seen = whole[self._seen :], len(whole)
        return [json.loads(line) for line in new]

    def of_turn(self) -> list[Json]:
        """The messages since the last look, to the last one of a turn."""
        found: list[Json] = []

        def is_whole() -> bool:
            found.extend(self.new())
            return any(message.get("method") == self._last for message in found)

        wait_for(is_whole, "the child has noted a turn")
        return found
