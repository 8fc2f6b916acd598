"""The app-server as a scripted provider: a stand-in that takes its answers from files and notes what it is sent.

Files, because it is a child of the bridge: of one that serves, and of each `exec`.
"""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

from harness import ROOT, python_program
from matrix.provider import SIGNATURE, USAGE, Call, Provider
from server.prompted import is_alive, wait_for

_PROGRAM = """import json, os, pathlib, sys, time

sys.path.insert(0, {root!r})
import trio
from bridge.appserver.standin import server

directory = pathlib.Path({directory!r})


def note(what, message=None):
    line = json.dumps(dict(what=what, pid=os.getpid(), at=time.monotonic(), message=message))
    with (directory / "seen.ndjson").open("a") as file:
        file.write(line + "\\n")


def next_steps(mode, prompt):
    path = min(directory.glob("answer-*.json"))
    steps = json.loads(path.read_text())
    path.unlink()
    return steps


class Child(server.Standin):
    async def _receive(self, line):
        message = json.loads(line)
        note(message.get("method"), message)
        await super()._receive(line)

    async def _fault(self, step):
        note("held")
        await super()._fault(step)

    async def _reason(self, voice, step):
        await super()._reason(voice, step)
        # The item as the model gave it, which Codex tells beside its own.
        item = dict(type="reasoning", id=f"rs-{{next(self._ids) - 1}}", summary=[], encrypted_content=step["encrypted"])
        await self._pipes.send([dict(method="rawResponseItem/completed", params=dict(voice._base, item=item))])


trio.run(Child(steps=next_steps).run)
"""

Json = dict[str, Any]


class AppServer(Provider):
    """The child that `program` is, in a directory of its own."""

    model = "app-server-model"

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.program = python_program(directory / "codex", _PROGRAM.format(root=str(ROOT), directory=str(directory)))
        self._seen = directory / "seen.ndjson"
        self._seen.touch()
        self._numbers = count(1)
        self._read = 0

    # Answers

    def says(self, *pieces: str) -> str:
        self._will({"deltas": pieces}, {"usage": self._counts()})
        return "".join(pieces)

    def calls(self, *calls: Call) -> list[Call]:
        self._will(*_said(calls))
        return list(calls)

    def thinks(self, thought: str, *calls: Call) -> None:
        self._will({"reasoning": [thought], "encrypted": SIGNATURE}, *(_said(calls) if calls else [{"text": "Done."}]))

    def refuses(self, status: int, message: str) -> None:
        kinds = {400: ("badRequest", ""), 429: ("rateLimitExceeded", " Please try again in 31 s.")}
        info, more = kinds[status]
        self._will({"error": {"message": message + more, "info": info}})

    def cuts(self, text: str) -> None:
        self._will({"text": text}, {"error": {"message": "Incomplete response returned, reason: max_output_tokens"}})

    def holds(self, text: str) -> None:
        self._will({"text": text}, {"hang": True})

    # What came

    def wait_until_held(self) -> None:
        wait_for(lambda: self._notes("held"), "the child says its first words")

    def left_at(self) -> float:
        """When the turn was interrupted; a child that is stopped with its run is seen to be gone."""
        (held,) = self._notes("held")

        def left() -> float | None:
            ends = self._notes("turn/interrupt")
            if ends:
                return float(ends[0]["at"])
            return None if is_alive(held["pid"]) else monotonic()

        return wait_for(left, "the child's turn is interrupted")

    def images(self) -> list[str]:
        return [part["image_url"] for part in self._parts() if part["type"] == "input_image"]

    def outputs(self) -> list[str]:
        return [item["output"] for item in self._items() if item["type"] == "function_call_output"]

    def thoughts(self) -> list[str]:
        return [item["encrypted_content"] for item in self._items() if item["type"] == "reasoning"]

    def settle(self) -> None:
        left = list(self.directory.glob("answer-*.json"))
        for path in left:
            path.unlink()
        self._read = self._seen.stat().st_size
        assert not left, "answers that nobody asked for"

    # Inside

    def _will(self, *steps: Json) -> None:
        path = self.directory / f"answer-{next(self._numbers):04}.json"
        path.write_text(json.dumps(steps))

    def _counts(self) -> Json:
        return dict(zip(("input", "cached", "output"), USAGE, strict=True))

    def _notes(self, what: str) -> list[Json]:
        """What the child noted of this kind in this test."""
        with self._seen.open() as file:
            file.seek(self._read)
            lines = [line for line in file.read().split("\n") if line.endswith("}")]
        return [noted for noted in map(json.loads, lines) if noted["what"] == what]

    def _items(self) -> list[Json]:
        """The items of the last request."""
        items: list[Json] = self._notes("thread/inject_items")[-1]["message"]["params"]["items"]
        return items

    def _parts(self) -> list[Json]:
        return [part for item in self._items() if item["type"] == "message" for part in item["content"]]


def _said(calls: tuple[Call, ...]) -> list[Json]:
    blocks = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return [{"text": "".join(f"<tool_call>{block}</tool_call>" for block in blocks)}]
