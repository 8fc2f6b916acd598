"""The two protocols that are not plain HTTP: the Responses API over a WebSocket, and `turnbridge exec`."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from time import monotonic
from typing import Any

from cli.exec.command import Command, Ran, finish
from harness import RunningBridge
from matrix.client import WEATHER, Json, Refused, ResponsesConversation
from protocols.wire.lines import items_of
from server.talk import talking


class WebSocket(ResponsesConversation):
    """A connection for each request."""

    def __init__(self, bridge: RunningBridge, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self.bridge = bridge

    def send(self, body: Json) -> Json:
        with talking(self.bridge) as talk:
            return talk.ask(body)

    def refused(self, text: str) -> Refused:
        self.history.append(self.user(text))
        with talking(self.bridge) as talk:
            message = talk.refused(self.body())
        error = message["error"]
        return Refused(message["status"], error["code"], error["message"])

    def leave(self, text: str, held: Callable[[], None]) -> float:
        self.history.append(self.user(text))
        with talking(self.bridge) as talk:
            talk.send(self.body())
            held()
            talk.until("Once ")
            return monotonic()


class Exec(ResponsesConversation):
    """A process for each request: `exec --json` with the conversation as its input."""

    def __init__(self, warm: Command, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self.warm = warm

    def arguments(self) -> list[str]:
        """Those of a run; the conversation is its stdin."""
        arguments = ["--json", "--model", self.model, "--input-json", "-"]
        if self.tools:
            arguments += ["--tool", f"weather:inline={json.dumps(WEATHER['parameters'])}"]
        return arguments + (["--effort", "medium"] if self.thinks else [])

    def run(self) -> Ran:
        return self.warm.run(*self.arguments(), stdin=json.dumps(self.history).encode())

    def send(self, body: Json) -> Json:
        ran = self.run()
        items, end = items_of(ran.events), ran.events[-1]
        if end["type"] == "error":
            assert (ran.code, end["code"]) == (1, "max_output_tokens"), ran
            details = {"status": "incomplete", "incomplete_details": {"reason": end["code"]}}
            return {"output": items, "usage": None, **details}
        assert ran.code == 0, ran
        usage = end["response"]["usage"]
        cached = {"input_tokens_details": {"cached_tokens": usage["cached_tokens"]}}
        return {"status": "completed", "output": items, "usage": usage | cached}

    def refused(self, text: str) -> Refused:
        self.history.append(self.user(text))
        ran = self.run()
        code = ran.events[-1]["code"]
        return Refused(None, code, ran.failed(code))

    def leave(self, text: str, held: Callable[[], None]) -> float:
        self.history.append(self.user(text))
        command = Command(self.warm.directory, self.warm.environment, self.warm.always)
        with command.start(*self.arguments()) as process:
            assert process.stdin is not None
            process.stdin.write(json.dumps(self.history).encode())
            process.stdin.close()
            process.stdin = None
            held()
            process.send_signal(signal.SIGINT)
            left = monotonic()
            ran = finish(process)
        assert ran.events[-1]["code"] == "interrupted", ran
        assert ran.code == 130, ran
        return left
