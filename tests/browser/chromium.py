"""A real Chromium, headless, spoken to over the DevTools protocol on two pipes: no port, no driver, no library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packages import NotInstalled, install

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 30.0
"""Seconds that one answer of the browser may take on a busy machine."""
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-default-apps", "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip

QUICK = """(async (act) => {
  const start = performance.now();
  await act();
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
})"""
"""How many milliseconds something takes until it is drawn. Limits are generous: other tests run beside it."""


def find_chromium() -> str:
    """The path of a Chromium; one is installed where that is possible. Raises NotInstalled."""
    for attempt in range(2):
        if (found := next(filter(None, map(shutil.which, NAMES)), None)) is not None:
            return found
        if not attempt:
            install("chromium", "fonts-dejavu-core")
    raise NotInstalled(f"The tests in tests/browser need a Chromium on the PATH ({', '.join(NAMES)}): install one.")


class Browser:
    """A running Chromium."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, come: int) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        """Everything that the browser told unasked."""
        self._to, self._come = to, come
        self._kept = b""
        self._calls = 0

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """One command and its result. Raises AssertionError when the browser refuses it."""
        self._calls += 1
        number = self._calls
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self._write(json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._read(deadline, method)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def open(self, url: str, *, width: int = 1400, height: int = 900, dark: bool = False, mobile: bool = False) -> Page:
        """A new page at this address, loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.resize(width, height, mobile=mobile)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.call("Emulation.setEmulatedMedia", features=scheme)
        if url != "about:blank":
            page.call("Page.navigate", url=url)
            page.until("document.readyState === 'complete' && location.href !== 'about:blank'")
        return page

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._to, data) :]

    def _read(self, deadline: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._kept:
            ready, _, _ = select.select([self._come], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser does not answer {waiting_for}"
            data = os.read(self._come, 1 << 20)
            assert data, f"the browser is gone, exit code {self.process.poll()}"
            self._kept += data
        message, _, self._kept = self._kept.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


class Page:
    """A page in it."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser = browser
        self.session = session
        self.target = target

    def call(self, method: str, **params: Any) -> Any:
        """A command to this page."""
        return self.browser.call(method, self.session, **params)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, also when it is a promise's."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str, seconds: float = 20) -> Any:
        """Wait, frame by frame, until an expression is true; its value."""
        loop = f"""new Promise((resolve, reject) => {{
          const end = performance.now() + {seconds * 1000};
          const look = () => {{
            let value;
            try {{ value = ({condition}); }} catch (error) {{ value = false; }}
            if (value) resolve(value);
            else if (performance.now() > end) reject(new Error("never became true: " + {json.dumps(condition)}));
            else setTimeout(look, 15);
          }};
          look();
        }})"""
        for attempt in range(20):
            try:
                return self.run(loop)
            except AssertionError as error:
                # The page that it ran in was replaced by the one that is loading.
                if attempt == 19 or not any(
                    why in str(error) for why in ("context was destroyed", "Cannot find context", "navigated or closed")
                ):
                    raise
        return None

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press and release a key, by its DOM name."""
        codes = {
            "Enter": 13,
            "Escape": 27,
            "Home": 36,
            "End": 35,
            "ArrowUp": 38,
            "ArrowDown": 40,
            "ArrowRight": 39,
            "Tab": 9,
        }
        described = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0]))}
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **described, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **described)

    def click(self, selector: str) -> None:
        """Click in the middle of the first element that a selector finds."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.until(f"{found}.getBoundingClientRect().width")
        # Two frames later it is where it stays: a browser that is busy hits what was there before.
        place = self.run(
            f"new Promise((done) => {{ {found}.scrollIntoView({{block: 'nearest'}});"
            " requestAnimationFrame(() => requestAnimationFrame(() => {"
            f" const b = {found}.getBoundingClientRect(); done([b.x + b.width / 2, b.y + b.height / 2]); }})); }})"
        )
        where = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **where)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **where)

    def text(self, selector: str) -> str:
        """The visible text of the first element that a selector finds."""
        return str(self.run(f"(document.querySelector({json.dumps(selector)}) || {{innerText: ''}}).innerText"))

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        """The size of the window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def screenshot(self, path: Path) -> None:
        """What is seen, as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def told(self, *methods: str) -> list[dict[str, Any]]:
        """The parameters of this page's events of these kinds so far."""
        self.run("1")  # whatever was on its way is here now
        events = self.browser.events
        return [
            each["params"] for each in events if each.get("sessionId") == self.session and each["method"] in methods
        ]

    def requests(self) -> list[str]:
        """The addresses that it asked for."""
        return [each["request"]["url"] for each in self.told("Network.requestWillBeSent")]

    def close(self) -> None:
        """Close the page."""
        self.browser.call("Target.closeTarget", targetId=self.target)


@contextmanager
def running_chromium(directory: Path) -> Iterator[Browser]:
    """A Chromium with a profile of its own in `directory`."""
    program = find_chromium()
    child_reads, to = os.pipe()
    come, child_writes = os.pipe()
    # Chromium reads commands from descriptor 3 and answers on 4.
    shell = f'exec "$@" 3<&{child_reads} 4>&{child_writes}'
    with (directory / "chromium-stderr.txt").open("wb") as errors:
        process = subprocess.Popen(
            [
                "/bin/bash",
                "-c",
                shell,
                "bash",
                program,
                *FLAGS,
                f"--user-data-dir={directory / 'profile'}",
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=(child_reads, child_writes),
            start_new_session=True,
            env=os.environ | {"HOME": str(directory)},
        )
    os.close(child_reads)
    os.close(child_writes)
    try:
        yield Browser(process, to, come)
    finally:
        os.close(to)
        os.close(come)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
