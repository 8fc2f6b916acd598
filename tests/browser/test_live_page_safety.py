"""What the live page must not do: run what was recorded, ask elsewhere, become slow, or be of no use to some people."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser.axe import axe_source, violations
from browser.chromium import QUICK, Browser, Page
from browser.hostile import attacks, hostile_log, put_markup
from browser.live import CALL, MODEL, TROUBLE, WEATHER, in_background, live_bridge, live_page, write
from harness import KEY, RunningBridge
from log.export.making import LogMaker
from warm import ROOT, WarmProcess

HERE = Path(__file__).parent
HOSTILE_PROMPT = "it's \"$(touch /tmp/pwned)\" `id` $HOME \\ \\n %s !! <b>\n\ttabbed\nJSON\n\u202eabc\u2028 é 🦊 ''\\''"


@contextmanager
def served_log(path: Path) -> Iterator[str]:
    """The address of the page over a recording."""
    process = WarmProcess(
        ["log", "serve", str(path), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(path.parent)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said = ""
        while (found := re.search(r"http://\S+", said)) is None:
            line = process.stdout.readline()
            assert line, said
            said += line
        yield found[0]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge with a turn that has everything, one that failed, and one that only echoes."""
    call = [{"reasoning": ["Hm."]}, {"text": f"I look.{CALL}"}, {"usage": {"input": 9, "output": 4, "cached": 2}}]
    failed = [{"deltas": ["half"]}, {"error": {"message": "Try later.", "info": "rateLimitExceeded"}}]
    with live_bridge(tmp_path_factory.mktemp("safe"), call, failed) as running:
        body = {"model": MODEL, "input": "weather in Bern?", "tools": [WEATHER], "instructions": "Be brief.", "seed": 1}
        running.events("/responses", body)
        running.events("/responses", {"model": MODEL, "input": "and in Thun?"})
        yield running


# Nothing that was recorded runs


def leave_nothing_running(page: Page, root: str, listener: socket.socket) -> None:
    assert page.run("typeof window.hacked") == "undefined"
    assert page.run("document.querySelectorAll('img, iframe, base, object, embed, svg a, style').length") == 0
    assert page.run("document.querySelectorAll('script, link').length") == 4
    # Ids of a hostile log may name no path that a server knows; those turns cannot be opened.
    trouble = [each for each in page.told(*TROUBLE) if "status of 404" not in json.dumps(each)]
    assert trouble == []
    assert [url for url in page.requests() if not url.startswith(root)] == []
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_hostile_requests_do_nothing(browser: Browser, tmp_path: Path, listener: socket.socket) -> None:
    texts = attacks(listener.getsockname()[1])
    steps = [[{"deltas": [text, f"<tool_call>{text}</tool_call>"]}] for text in texts]
    with live_bridge(tmp_path, *steps) as bridge, live_page(browser, bridge) as page:
        for text in texts:
            tool = {"type": "function", "name": "weather", "description": text, "parameters": {"type": "object"}}
            body = {"model": MODEL, "input": text, "instructions": text, "tools": [tool], "user": text, text: text}
            bridge.post("/responses", body)
            bridge.post("/responses", {"model": text, "input": text})
        page.until(f"document.querySelectorAll('#list .row').length >= {min(12, len(texts))}")
        listed = page.run("fetch('/page/api/turns?limit=100').then((r) => r.json())")["turns"]
        assert len(listed) >= len(texts)
        for row in listed:
            for tab in ("conversation", "wire", "heard", "context"):
                page.run(f"location.hash = '#/turn/' + encodeURIComponent({json.dumps(row['id'])}) + '/{tab}'")
                page.until(f"document.querySelector('#turn .panel.{tab}') && !document.querySelector('[aria-busy]')")
                page.run("document.querySelectorAll('#turn details').forEach((each) => { each.open = true; })")
        for name in ("copy", "send", "compare"):
            page.click(f"[data-action={name}]")
            page.until("document.querySelector('dialog')")
            page.press("Escape")
            page.until("!document.querySelector('dialog')")
        page.run(f"location.hash = '#/compare/{listed[0]['id']}/{listed[-1]['id']}'")
        page.until("document.querySelector('#compare .diff')")
        for text in filter(str.isprintable, texts):
            page.run(f"location.hash = '#/turns?grep=' + encodeURIComponent({json.dumps(text)})")
            page.until(f"document.querySelector('#filter').value === {json.dumps(text)}.trim()")
        leave_nothing_running(page, bridge.root, listener)


def test_text_cannot_reorder_or_overwrite_what_is_beside_it(browser: Browser, tmp_path: Path) -> None:
    text = "\u202egnp.exe\u202c \x1b[31mred\x07 \u2066abc\u2069"
    steps = [{"deltas": [f"{text} ", "and on. "]}, {"hang": True}]
    with live_bridge(tmp_path, steps) as bridge, live_page(browser, bridge) as page:
        request = in_background(bridge, {"model": MODEL, "input": text})
        page.until("document.querySelector('#list .row .running')")
        page.click("#list .row")
        page.until("document.querySelector('.streamed .said').textContent.includes('and')")
        shown = page.run("document.body.textContent")
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\x07]", shown)
        assert "\\u202egnp.exe\\u202c \\u001b[31mred\\u0007" in page.run(
            "document.querySelector('.streamed').textContent"
        )
        page.click("[data-action=cancel]")
        page.until("document.querySelector('.badge.cancelled')")
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\x07]", page.run("document.body.textContent"))
        request.join()


def test_a_hostile_log_does_nothing(browser: Browser, tmp_path: Path, listener: socket.socket) -> None:
    log = hostile_log(tmp_path / "hostile.ndjson", listener.getsockname()[1])
    with served_log(log) as address:
        page = browser.open(address)
        page.until("document.querySelectorAll('#list .row').length > 5")
        listed = page.run("fetch('/page/api/turns?limit=100').then((r) => r.json())")["turns"]
        for row in listed:
            for tab in ("conversation", "wire", "heard", "context"):
                page.run(f"location.hash = '#/turn/' + encodeURIComponent({json.dumps(row['id'])}) + '/{tab}'")
                page.until(
                    f"(document.querySelector('#turn .panel.{tab}') || document.querySelector('#turn .start .error'))"
                    " && !document.querySelector('[aria-busy]')"
                )
                page.run("document.querySelectorAll('#turn details').forEach((each) => { each.open = true; })")
        leave_nothing_running(page, address.partition("/#")[0], listener)
        page.close()


def test_a_recording_can_be_read_but_not_acted_on(browser: Browser) -> None:
    with served_log(ROOT / "fixtures/logs/current.ndjson") as address:
        page = browser.open(address)
        page.until("document.querySelectorAll('#list .row').length > 5")
        assert page.text("#link") == "Recording"
        assert page.text("#title") == "current.ndjson"
        page.click("#list .row")
        page.until("document.querySelector('.conversation')")
        shown = page.run("[...document.querySelectorAll('[data-action]')].map((each) => each.dataset.action)")
        assert shown == ["compare", "copy"]
        assert page.told(*TROUBLE) == []
        page.close()


def test_the_policy_holds_even_if_the_page_were_careless(
    browser: Browser, bridge: RunningBridge, listener: socket.socket
) -> None:
    """Markup that gets into the page all the same neither runs nor loads anything."""
    host = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with live_page(browser, bridge, calm=False) as page:
        assert put_markup(page, host) >= 3
    with pytest.raises(BlockingIOError):
        listener.accept()


# What is copied runs, and does what the turn did


def copied(page: Page, form: int) -> str:
    """The text of "Copy as", in the form of this number."""
    page.click("[data-action=copy]")
    page.click(f"dialog .choices button:nth-child({form})")
    text: str = page.run("document.querySelector('dialog .tocopy').textContent")
    page.press("Escape")
    page.until("!document.querySelector('dialog')")
    return text


def test_copied_commands_repeat_the_turn(browser: Browser, bridge: RunningBridge, tmp_path: Path) -> None:
    """curl and exec in a shell, and Python, with a text that a careless quote would let out."""
    body = {"model": "mock-echo", "input": HOSTILE_PROMPT, "instructions": HOSTILE_PROMPT, "tools": [WEATHER]}
    bridge.post("/responses", body)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OPENAI_API_KEY": KEY, "HOME": str(tmp_path),
    }  # fmt: skip
    with live_page(browser, bridge) as page:
        page.until("document.querySelector('#list .row')")
        page.press("/")
        write(page, "#filter", "mock-echo")
        write(page, "#tools [name=model]", "mock-echo")
        write(page, "#filter", "")
        page.until("document.querySelector('#count').textContent === '1 turn'")
        page.click("#list .row")
        page.until("document.querySelector('[data-action=copy]')")
        curl, python, run = (copied(page, form) for form in (1, 2, 3))
    for text in (curl, python, run):
        assert KEY not in text
        assert "OPENAI_API_KEY" in text
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b]", text)
    (tmp_path / "again.py").write_text(python)
    for command in (["bash", "-c", curl], [sys.executable, str(tmp_path / "again.py")], ["bash", "-c", run]):
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (command, done.stderr)
        answer = done.stdout
        if answer.startswith("{"):
            answer = json.loads(answer)["output"][0]["content"][0]["text"]
        assert answer.strip() == HOSTILE_PROMPT.strip(), command
    assert not Path("/tmp/pwned").exists()


def test_rows_of_a_comparison_are_both_texts(browser: Browser, bridge: RunningBridge) -> None:
    """The law of a difference: either side, read alone, is its text; and equal lines are not marked."""
    law = """import('/page/static/diff.js').then(({ lineRows, wordStretches }) => {
      let seed = 7;
      const dice = (most) => (seed = (seed * 16807) % 2147483647) % most;
      const text = () => Array.from({ length: dice(12) }, () => 'ab c'[dice(4)] + 'xy'[dice(2)]);
      for (let round = 0; round < 3000; round += 1) {
        const [a, b] = [text(), text()];
        const rows = lineRows(a, b);
        for (const [side, lines] of [[0, a], [1, b]]) {
          const read = rows.map((row) => row[side]).filter((line) => line !== null);
          if (read.join('|') !== lines.join('|')) return [a, b, rows];
        }
        const stretches = wordStretches(a.join(''), b.join(''));
        if (stretches[0].map(([words]) => words).join('') !== a.join('')) return [a, b, stretches];
        if (stretches[1].map(([words]) => words).join('') !== b.join('')) return [a, b, stretches];
        const same = (index) => stretches[index].filter(([, differs]) => !differs).map(([words]) => words).join('');
        if (same(0) !== same(1)) return [a, b, stretches];
      }
      const long = Array.from({ length: 20000 }, (_, index) => `line ${index}`);
      return lineRows(long, [...long].reverse()).length >= 20000;
    })"""
    with live_page(browser, bridge) as page:
        assert page.run(law) is True


# It stays quick

LIMIT = 200
"""Milliseconds until something is drawn; the best of three, as other tests run beside this one."""


ANSWERING = """performance.getEntriesByType('resource').filter((each) => /turns.req_/.test(each.name))
  .map((each) => each.responseStart - each.requestStart)[0]"""
"""Milliseconds that the server took for the turn, which are not the page's."""


def test_ten_thousand_turns_and_one_of_five_megabytes_stay_usable(browser: Browser, tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "large.ndjson")
    for number in range(10_000):
        log.turn(body={"model": "m", "input": f"question {number}"}, model="m")
        log.wait(0.1)
    text = "word and more " * 180_000
    pieces = [text[at : at + 1_000] for at in range(0, len(text), 1_000)]
    events = [f"data: {json.dumps({'type': 'response.output_text.delta', 'delta': piece})}\n\n" for piece in pieces]
    big = log.turn(body={"model": "big", "input": "a long answer, please"}, model="big", said=pieces, sent=events)
    with served_log(log.close()) as address:
        page = browser.open(address)
        page.until("document.querySelectorAll('#list .row').length > 5")
        scroll = f"{QUICK}(() => {{ document.querySelector('#list').scrollTop = 1e9; }})"
        times = []
        while not page.run("document.querySelector('#count').textContent === '10,001 turns'"):
            times.append(page.run(scroll))
        times += [page.run(scroll.replace("1e9", place)) for place in ("100000", "300000", "0")]
        assert sorted(times)[len(times) * 9 // 10] <= LIMIT, times
        assert page.run("document.querySelectorAll('#list .row').length") < 60
        opened = f"""{QUICK}(() => {{
          performance.clearResourceTimings();
          location.hash = '#/turn/{big}';
          return new Promise((done) => {{
            const look = () => (document.querySelector('#turn .conversation .said') ? done() : setTimeout(look, 1));
            look();
          }});
        }})"""
        best = 1e9
        for _ in range(3):
            page.run("location.hash = '#/turns'")
            page.until("!document.querySelector('#turn .conversation')")
            best = min(best, page.run(opened) - page.run(ANSWERING))
        assert best <= LIMIT
        page.until("document.querySelectorAll('.timeline rect.received').length > 10")
        # All of it comes when it is asked for.
        page.click("#turn .notice button")
        page.until("!document.querySelector('#turn .notice')")
        page.click(".conversation button.more")
        page.until(f"document.querySelector('.conversation').textContent.length > {len(text)}")
        page.click("[data-tab=wire]")
        page.until("document.querySelector('#frames .pair')")
        frames = [page.run(scroll.replace("#list", "#frames").replace("1e9", place)) for place in ("1e9", "9000", "0")]
        assert min(frames) <= LIMIT
        page.press("/")
        page.type("question 4321")
        page.until("document.querySelector('#count').textContent === '1 turn'")
        page.close()


# Everyone can use it


def check(page: Page, source: str, view: str) -> None:
    found = violations(page, source)
    assert found == [], f"{view}: {json.dumps(found, indent=1)}"
    poor = page.run((HERE / "contrast.js").read_text())
    assert poor == [], f"{view}: too little contrast: {poor}"
    assert page.run("document.documentElement.scrollWidth <= innerWidth"), f"{view}: wider than the screen"


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_every_view_is_accessible(browser: Browser, bridge: RunningBridge, dark: bool, width: int) -> None:
    """axe-core finds nothing, every text stands out from its ground, and nothing is wider than the screen."""
    source = axe_source()
    with live_page(browser, bridge, dark=dark, width=width) as page:
        page.until("document.querySelectorAll('#list .row').length >= 2")
        page.click("#tools .few button")  # more filters
        check(page, source, "turns")
        page.click("#tools .few button")
        listed = page.run("fetch('/page/api/turns?limit=50').then((r) => r.json())")["turns"]
        call = next(row["id"] for row in listed if row["calls"])
        failed = next(row["id"] for row in listed if row["outcome"] == "failed")
        for tab in ("conversation", "wire", "heard", "context"):
            page.run(f"location.hash = '#/turn/{call}/{tab}'")
            page.until(f"document.querySelector('#turn .panel.{tab}')")
            page.until("document.querySelector('.timeline rect.received')")
            check(page, source, tab)
        page.run(f"location.hash = '#/turn/{failed}'")
        page.until("document.querySelector('#turn .error')")
        check(page, source, "failed")
        for name in ("send", "compare", "copy", "case"):
            page.click(f"[data-action={name}]")
            page.until("document.querySelector('dialog')")
            check(page, source, name)
            page.press("Escape")
            page.until("!document.querySelector('dialog')")
        page.click("#help")
        check(page, source, "help")
        page.press("Escape")
        page.run(f"location.hash = '#/compare/{call}/{failed}'")
        page.until("document.querySelector('#compare .diff')")
        check(page, source, "compare")
        page.run("location.hash = '#/overview'")
        page.until("document.querySelector('#charts .tile')")
        check(page, source, "overview")
        page.click("#leave")
        page.until("document.querySelector('.signin input')")
        check(page, source, "sign-in")


def test_a_running_turn_is_accessible_and_holds_still_if_asked_to(browser: Browser, tmp_path: Path) -> None:
    source = axe_source()
    steps = [{"reasoning": ["Hm."]}, {"deltas": ["going on "]}, {"hang": True}]
    with live_bridge(tmp_path, steps) as bridge, live_page(browser, bridge) as page:
        request = in_background(bridge, {"model": MODEL, "input": "never ends"})
        page.until("document.querySelector('#list .row .running')")
        page.click("#list .row")
        page.until("document.querySelector('.streamed .said')")
        check(page, source, "running")
        assert page.run("document.getAnimations().length") > 0
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        page.until("document.getAnimations().length === 0")
        page.click("[data-action=cancel]")
        page.until("document.querySelector('.badge.cancelled')")
        request.join()
