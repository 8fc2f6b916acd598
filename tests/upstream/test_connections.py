"""What the upstream's client does with its connections: one serves call after call, and nothing is left behind."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import trio
from upstream.answers import Gate, Stream
from upstream.asking import body, headers
from upstream.chatgpt import ChatGPT, serving, serving_in_thread
from upstream.events import answer, call, text

from bridge.core.events import Finished
from bridge.protocols.responses.decoder import ResponsesBuffer
from bridge.upstream.client import LAST_BYTES, Patience, Upstream
from bridge.upstream.credentials import Request


class Asker:
    """Asks for one answer, with a login that works."""

    def __init__(self, chatgpt: ChatGPT) -> None:
        self._chatgpt = chatgpt

    def request(self) -> Request:
        content = json.dumps(body()).encode()
        more = {"content-type": "application/json"}
        return Request(f"{self._chatgpt.base_url}/responses", {**headers(self._chatgpt), **more}, content)

    async def renew(self) -> bool:
        return False


async def ask(upstream: Upstream, chatgpt: ChatGPT) -> None:
    """One call to its last event, as a consumer makes it."""
    stream = upstream.start(Asker(chatgpt), ResponsesBuffer())
    while not isinstance(last := (await stream.next())[-1], Finished):
        pass
    stream.close()
    assert last.outcome == "completed", last


async def test_calls_one_after_the_other_use_one_connection() -> None:
    """Each begins when the answer before it is over; no generator is left for the collector to find."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        async with serving() as chatgpt, trio.open_nursery() as nursery:
            upstream = Upstream(chatgpt.base_url, Patience(), jitter=lambda: 0.5)
            await nursery.start(upstream.run)
            for _ in range(4):
                await ask(upstream, chatgpt)
                await trio.testing.wait_all_tasks_blocked()  # the last bytes come after the last event
            assert [request.connection for request in chatgpt.requests] == [1, 1, 1, 1]
            assert (chatgpt.gone, chatgpt.faults) == ([], [])
            gc.collect()
            nursery.cancel_scope.cancel()
        gc.collect()
    assert [str(each.message) for each in warned] == []


async def test_an_answer_without_an_end_costs_its_connection(autojump_clock: trio.testing.MockClock) -> None:
    """The consumer has everything at once; the last bytes are waited for a moment, then the connection is closed."""
    async with serving() as chatgpt, trio.open_nursery() as nursery:
        upstream = Upstream(chatgpt.base_url, Patience(), jitter=lambda: 0.5)
        await nursery.start(upstream.run)
        chatgpt.will(Stream([*answer(text("a")), Gate()]))
        begun = trio.current_time()
        await ask(upstream, chatgpt)
        assert trio.current_time() == begun
        await chatgpt.until(lambda: chatgpt.gone)
        assert trio.current_time() - begun <= LAST_BYTES + 0.1
        await ask(upstream, chatgpt)
        assert [request.connection for request in chatgpt.requests] == [1, 2]
        nursery.cancel_scope.cancel()


def test_a_run_with_several_calls_leaves_nothing_behind(tmp_path: Path) -> None:
    """Python's own development mode warns of whatever is not closed."""
    tool = ("--tool", 'f:inline={"type": "object"}', "--tool-output", "f=1", "--auto-tools")
    with serving_in_thread() as chatgpt:
        home = chatgpt.home(tmp_path)
        chatgpt.will(*[Stream(answer(call("f", "{}")))] * 3)
        run = subprocess.run(
            [sys.executable, "-X", "dev", "-m", "bridge", "exec", "--backend", "codex", "--prompt", "hi", *tool],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **chatgpt.environment(home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (run.returncode, run.stdout) == (0, "result: 1\n"), run.stderr
        assert "ResourceWarning" not in run.stderr
        assert len(chatgpt.requests) == 4
        assert chatgpt.faults == []
