"""Requests to the scripted backend as the bridge would make them, through a plain HTTP client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import trio
from upstream.chatgpt import ChatGPT, serving

Json = dict[str, Any]

SESSION = "11111111-2222-3333-4444-555555555555"
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


def body(*items: Json, **more: Any) -> Json:
    return {
        "model": "gpt-5.2-codex",
        "instructions": "be kind",
        "input": items or [USER],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": SESSION,
        **more,
    }


def headers(chatgpt: ChatGPT, **more: str) -> dict[str, str]:
    """Those of a request in chatgpt mode; an empty value leaves one out."""
    token = next(iter(chatgpt.logins.access), None) or chatgpt.logins.issue()["access_token"]
    wanted = {
        "authorization": f"Bearer {token}",
        "originator": "codex_cli_rs",
        "user-agent": "codex_cli_rs/0.0.0",
        "session_id": SESSION,
        "chatgpt-account-id": chatgpt.logins.account,
        "accept": "text/event-stream",
        **{name.replace("_account_", "-account-"): value for name, value in more.items()},
    }
    return {name: value for name, value in wanted.items() if value}


@asynccontextmanager
async def talking() -> AsyncIterator[tuple[ChatGPT, httpx2.AsyncClient]]:
    async with serving() as chatgpt, httpx2.AsyncClient(base_url=chatgpt.base_url, trust_env=False) as client:
        yield chatgpt, client


async def ask(chatgpt: ChatGPT, client: httpx2.AsyncClient, *items: Json) -> httpx2.Response:
    return await client.post("/responses", json=body(*items), headers=headers(chatgpt))


async def read_until(chatgpt: ChatGPT, client: httpx2.AsyncClient, word: bytes) -> None:
    """Read an answer until this word comes, then hang up.

    By cancelling: httpx2 leaves generators behind when a loop over a stream is just left, and trio warns of them.
    """
    with trio.CancelScope() as scope:
        async with client.stream("POST", "/responses", json=body(), headers=headers(chatgpt)) as response:
            async for piece in response.aiter_raw():
                if word in piece:
                    scope.cancel()


def events_in(raw: bytes) -> list[Json]:
    lines = raw.decode().replace("\r\n", "\n").split("\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


def kinds(events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]
