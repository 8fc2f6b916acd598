"""Several who want to refresh one login: tasks of this program, and other programs, which may hold its lock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio
from upstream.answers import Gate
from upstream.anthropic_server import Anthropic
from upstream.chatgpt import ChatGPT

TokenEndpoint = ChatGPT | Anthropic


# Tasks


async def refresh_into(got: list[Any], login: Any, old: Any) -> None:
    """Refresh, and keep what that came to."""
    got.append(await login.refresh(old))


async def refresh_within(scope: trio.CancelScope, login: Any, old: Any) -> None:
    """Refresh, unless the scope is cancelled."""
    with scope:
        await login.refresh(old)


@asynccontextmanager
async def refreshing(endpoint: TokenEndpoint, old: Any, *logins: Any) -> AsyncIterator[list[Any]]:
    """All of these refresh the old one. The block runs before the endpoint answers; what they get is there after it."""
    got: list[Any] = []
    gate = Gate()
    endpoint.token_gate = gate
    async with trio.open_nursery() as nursery:
        for login in logins:
            nursery.start_soon(refresh_into, got, login, old)
        await endpoint.until(lambda: gate.held)
        yield got
        gate.open()


async def refresh_in_many_tasks(endpoint: TokenEndpoint, *logins: Any) -> list[Any]:
    """What a hundred tasks get that refresh one login; its refresh token must be used once."""
    old = logins[0].current()
    async with refreshing(endpoint, old, *logins * (100 // len(logins))) as got:
        pass
    assert endpoint.logins.uses == {old.refresh_token: 1}
    return got


# Programs


def refresher(login: type, now: Any) -> str:
    """A program that reads a login, waits for a line, refreshes it and tells its token, or the code of the error."""
    return f"""
import sys, httpx2, trio
from pathlib import Path
from {login.__module__} import {login.__name__}
from bridge.errors import BridgeError

async def main(place, url):
    async with httpx2.AsyncClient(trust_env=False) as client:
        login = {login.__name__}(Path(place), token_url=url, client=client, now=lambda: {now!r})
        old = login.current()
        print("ready", flush=True)
        sys.stdin.readline()
        print("asking", flush=True)
        try:
            print((await login.refresh(old)).token, flush=True)
        except BridgeError as error:
            print(error.code, flush=True)

trio.run(main, *sys.argv[1:])
"""


@contextmanager
def refreshers(
    program: str, place: Path, endpoint: TokenEndpoint, number: int
) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that have read the login and wait to be told to refresh it."""
    command = [sys.executable, "-c", program, str(place), endpoint.token_url]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        for _ in range(number)
    ]
    try:
        for process in processes:
            assert said(process) == "ready"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    assert said(process) == "asking"


def told_by_three(program: str, place: Path, endpoint: TokenEndpoint) -> list[str]:
    """What three processes tell that all ask before the endpoint answers."""
    gate = endpoint.token_gate = Gate()
    with refreshers(program, place, endpoint, 3) as processes:
        for process in processes:
            go(process)
        endpoint.wait_for(lambda: gate.held)
        gate.open()
        return [said(process) for process in processes]


def told_after_a_kill(program: str, place: Path, endpoint: TokenEndpoint, path: Path) -> str:
    """What the next process tells when one is killed while refreshing, which leaves the file as it was."""
    before = path.read_bytes()
    gate = endpoint.token_gate = Gate()
    with refreshers(program, place, endpoint, 2) as (killed, next_one):
        go(killed)
        endpoint.wait_for(lambda: gate.held == 1)
        killed.kill()
        killed.wait()
        assert path.read_bytes() == before
        gate.open()
        go(next_one)
        return said(next_one)


@contextmanager
def holding(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """Another program that holds the lock until it is killed."""
    command = "import fcntl, sys; fcntl.flock(file := open(sys.argv[1], 'w'), 2); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", command, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert said(process) == "held"
        try:
            yield process
        finally:
            process.kill()
