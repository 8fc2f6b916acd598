"""`turnbridge exec --backend codex` as a process, in front of the scripted backend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.exec.command import Command, Ran, Word, environment
from upstream.chatgpt import ChatGPT, serving_in_thread

Json = dict[str, Any]

SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
ADD: tuple[Word, ...] = ("--tool", f"add:inline={json.dumps(SCHEMA)}")
HI: tuple[Word, ...] = ("--prompt", "hi")


@dataclass
class Direct:
    """The command with a login, and the backend that it asks."""

    chatgpt: ChatGPT
    home: Path
    directory: Path

    @property
    def command(self) -> Command:
        variables = environment(self.directory, **self.chatgpt.environment(self.home))
        return Command(self.directory, variables, ("--backend", "codex"))

    @property
    def auth(self) -> Path:
        return self.home / "auth.json"

    @property
    def bodies(self) -> list[Json]:
        """The requests that have arrived."""
        return [request.body for request in self.chatgpt.requests]

    @property
    def statuses(self) -> list[int | None]:
        return [request.status for request in self.chatgpt.requests]

    def run(self, *arguments: Word, stdin: bytes = b"", **more: str) -> Ran:
        """Run it to its end."""
        return self.command.run(*arguments, stdin=stdin, **more)

    def file(self, name: str, content: Any) -> Path:
        """A file with JSON in it."""
        path = self.directory / name
        path.write_text(json.dumps(content))
        return path


@contextmanager
def directly(directory: Path, form: Any = "chatgpt", **more: Any) -> Iterator[Direct]:
    """A login of this form that works. At the end nothing wrong may have been sent."""
    with serving_in_thread() as chatgpt:
        direct = Direct(chatgpt, chatgpt.home(directory, form, **more), directory)
        yield direct
        assert chatgpt.faults == []
