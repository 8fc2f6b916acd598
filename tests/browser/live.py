"""The live page of a running bridge, opened in the browser."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browser.chromium import Browser, Page
from harness import KEY, RunningBridge, running_bridge, scripted_codex, turns

TROUBLE = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
MODEL = "gpt-5.2-codex"
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"},}</tool_call>'


@contextmanager
def live_bridge(directory: Path, *steps: Sequence[Any], **environment: str) -> Iterator[RunningBridge]:
    """A bridge whose child performs these turns."""
    program = scripted_codex(directory, turns(*steps))
    with running_bridge(directory, CODEX_BIN=str(program), PROXY_MODELS=MODEL, **environment) as bridge:
        yield bridge


def printed_address(bridge: RunningBridge) -> str:
    """The page's address, with its token, as `serve` prints it."""
    assert bridge.process.stdout is not None
    line = bridge.process.stdout.readline()
    found = re.search(r"http://\S+/#token=\S+", line)
    assert found, line
    return found[0]


@contextmanager
def live_page(
    browser: Browser, bridge: RunningBridge, view: str = "", *, key: str = KEY, calm: bool = True, **options: Any
) -> Iterator[Page]:
    """The page, with a session of this key, at a view such as `#/overview`. It is closed at the end.

    `calm`: nothing may have gone wrong in it then.
    """
    with bridge.client(key=key) as client:
        answer = client.post(f"{bridge.root}/page/session", json={"key": key}, headers={"origin": bridge.root})
    assert answer.status_code == 204, answer.text
    name, value = answer.headers["set-cookie"].partition(";")[0].split("=", 1)
    page = browser.open("about:blank", **options)
    cookie = {"name": name, "value": value, "url": bridge.root, "path": "/page"}
    page.call("Network.setCookie", **cookie, httpOnly=True, sameSite="Strict")
    page.call("Page.navigate", url=f"{bridge.root}/{view}")
    try:
        page.until("document.querySelector('#link').textContent === 'Live'")
        yield page
        if calm:
            untroubled(page, bridge)
    finally:
        # An open page keeps connections, of which a browser has only six to one host.
        page.close()


def untroubled(page: Page, bridge: RunningBridge) -> None:
    """Nothing went wrong in the page, and all that it asked for is at the bridge."""
    trouble = page.told(*TROUBLE)
    assert trouble == [], trouble
    assert [url for url in page.requests() if not url.startswith(bridge.root)] == []


def in_background(bridge: RunningBridge, body: dict[str, Any]) -> threading.Thread:
    """A streamed request that is on its way while the test does something else."""
    thread = threading.Thread(target=bridge.events, args=("/responses", body))
    thread.start()
    return thread


def rows(page: Page) -> list[str]:
    """The rows of the list that are in sight, each on one line."""
    found: list[str] = page.run(
        "[...document.querySelectorAll('#list .row')].map((row) => row.innerText.replaceAll('\\n', ' '))"
    )
    return found


def write(page: Page, selector: str, value: str) -> None:
    """Put a value into a field, as if it were typed or chosen."""
    page.run(
        f"(() => {{ const field = document.querySelector({json.dumps(selector)}); field.focus();"
        f" field.value = {json.dumps(value)}; field.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
    )
