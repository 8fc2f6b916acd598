"""The exported page in a real browser, opened from its file: what a person sees, and what nobody should."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.chromium import QUICK, Browser, Page
from browser.hostile import attacks, hostile_log, put_markup
from log.export.making import LogMaker
from warm import run_warm

ARGUMENTS = '{"city":"Bern","n":12345678901234567890}'
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"},}</tool_call>'
TROUBLE = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")


def export(log: Path) -> str:
    """The page of a log, made by the command; its address."""
    page = log.with_suffix(".html")
    run_warm("log", "export", log, "--html", page, env=dict(os.environ)).check_returncode()
    return page.as_uri()


def response(*items: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, "output": list(items)}


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of four turns: a call with a repair, a long text, a chat, and an error."""
    log = LogMaker(tmp_path_factory.mktemp("day") / "day.ndjson")
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": ARGUMENTS}
    told: list[dict[str, Any]] = [
        {"type": "response.created"},
        {"type": "response.completed", "response": response(call)},
    ]
    sent = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in told]
    notes: list[tuple[str, dict[str, Any]]] = [
        ("tool_call", {"name": "weather", "call_id": "call_1", "source": CALL}),
        ("tool_repair", {"name": "weather", "repairs": ["trailing_comma"]}),
    ]
    usage = {"input_tokens": 1200, "cached_tokens": 1000, "output_tokens": 30, "reasoning_tokens": 0}
    log.turn(
        body={"model": "gpt-5.2", "input": "weather in Bern?", "tools": [{"type": "function", "name": "weather"}]},
        model="gpt-5.2",
        said=["I look. ", CALL[:20], CALL[20:]],
        sent=sent,
        notes=notes,
        calls=["weather"],
        repairs=["trailing_comma"],
        usage=usage,
    )
    log.wait(60)
    log.turn(
        body={"model": "gpt-5.2", "input": "hello"},
        model="gpt-5.2",
        answer=response(message(f"{'word ' * 40_000}needle")),
    )
    log.turn(
        path="/v1/chat/completions",
        body={"model": "mini", "messages": [{"role": "user", "content": "stations?"}]},
        model="mini",
        answer={"choices": [{"index": 0, "message": {"content": "Bern, Thun."}, "finish_reason": "stop"}]},
    )
    error = {"code": "rate_limited", "message": "Try again in 12 s.", "http_status": 429}
    failed: dict[str, Any] = {"status": 429, "answer": {"error": error}, "outcome": "failed", "error": error}
    log.turn(body={"model": "mini", "input": "again"}, model="mini", **failed)
    return export(log.close())


@pytest.fixture
def page(browser: Browser, day: str) -> Iterator[Page]:
    """The page of that day, opened; at the end nothing may have gone wrong in it, and nothing may have left it."""
    opened = browser.open(day)
    opened.until("document.querySelector('#count').textContent === '4 turns'")
    yield opened
    assert opened.told(*TROUBLE) == []
    assert {address.partition("#")[0] for address in opened.requests()} == {day}
    opened.close()


def listed(page: Page) -> list[str]:
    found: list[str] = page.run("[...document.querySelectorAll('#list .row')].map((row) => row.innerText)")
    return found


def test_the_list_tells_what_there_is(page: Page) -> None:
    first, *_, last = listed(page)
    for told in (
        "08:00:00",
        "gpt-5.2",
        "10 ms / 20 ms",
        "1,200 → 30",
        "1 call, 1 repair",
        "weather in Bern?",
        "completed",
    ):
        assert told in first.replace("\n", " ")
    assert "rate_limited again" in last
    assert page.text("#title") == "day.ndjson"


def test_typing_into_the_filter_shrinks_the_list(page: Page) -> None:
    page.press("/")
    page.type("STATIONS")
    page.until("document.querySelector('#count').textContent === '1 of 4 turns'")
    assert "mini" in listed(page)[0]
    for wanted, count in (
        ("weather", 1),
        ("rate_lim", 1),
        ("req_0000", 4),
        ("failed", 1),
        ("thun", 1),
        ("/chat/comp", 1),
        ("needle", 1),
        ("none", 0),
    ):
        page.run("document.querySelector('#filter').select()")
        page.type(wanted)
        page.until(f"document.querySelector('#count').textContent.startsWith('{count or 0} ')")
        page.until("!document.querySelector('#count').textContent.includes('searching')")
        assert len(listed(page)) == count, wanted


def test_chips_narrow_the_list(page: Page) -> None:
    page.click(".chip[aria-pressed=false]:nth-child(2)")
    page.until("document.querySelectorAll('#list .row').length === 1")
    assert page.text(".chip[aria-pressed=true]").split() == ["failed", "1"]
    page.click(".chip[aria-pressed=true]")
    page.until("document.querySelectorAll('#list .row').length === 4")


def test_a_turn_opens_with_its_conversation(page: Page) -> None:
    page.click("#list .row")
    page.until("document.querySelector('.conversation')")
    assert page.text(".part.text .said") == "weather in Bern?"
    assert page.text(".part.call .name") == "weather"
    # Indented, but to the last digit as it was.
    assert page.text(".part.call pre") == '{\n  "city": "Bern",\n  "n": 12345678901234567890\n}'
    assert page.text(".badge") == "completed"
    assert "1,000 cached" in page.text(".metrics")
    # It is drawn when its data has been unpacked.
    page.until("document.querySelectorAll('.timeline svg rect.received').length >= 2")


def test_the_model_s_text_shows_what_was_repaired(page: Page) -> None:
    page.click("#list .row")
    page.click("[data-tab=heard]")
    assert page.text(".taken.repair .caption") == "repaired — weather: trailing_comma"
    assert page.text(".raw").replace("\n", "").endswith(CALL)
    assert page.run("[...document.querySelectorAll('.raw .tag')].map((tag) => tag.textContent)") == [
        "<tool_call>",
        "</tool_call>",
    ]


def test_frames_and_events_stand_side_by_side_in_the_order_of_time(page: Page) -> None:
    page.click("#list .row")
    page.click("[data-tab=wire]")
    page.until("document.querySelector('#frames').textContent.includes('end: completed')")
    rows = page.run(
        "[...document.querySelectorAll('#frames .pair')].map((row) => [...row.children].map((cell) =>"
        " [...cell.children].map((part) => part.textContent)))"
    )
    assert [cell[2] for cell, _ in rows if cell] == ["item/agentMessage/delta"] * 3
    assert next(cell[3] for cell, _ in rows if cell) == "I look. "
    events = [cell[2] for _, cell in rows if cell]
    assert events == ["POST /v1/responses", "HTTP 200", "response.created", "response.completed", "end: completed"]
    times = [float(cell[0]) for row in rows for cell in row if cell]
    assert times == sorted(times)
    page.click("#frames .pair:nth-child(2) .cell")
    page.until("document.querySelector('.detail .tree')")
    assert "I look. " in page.text(".detail")
    page.click(".wiretools input")
    page.type("created")
    page.until("document.querySelectorAll('#frames .pair').length === 1")


@pytest.mark.parametrize("lines", [True, False])
def test_packets_of_cap_are_told_by_what_they_bring(browser: Browser, tmp_path: Path, lines: bool) -> None:
    """Whether they came as lines or as events."""
    thought = {"thought": "Hm.", "kind": "summary", "item_id": "rs_1", "index": 0, "final": True}
    failed = {"code": "upstream_error", "message": "It broke.", "severity": "fatal"}
    packets: list[dict[str, Any]] = [
        {"op": "event", "p": {"id": "x", "type": "thought_trace", "data": thought}},
        {"op": "delta", "p": "Good day"},
        {"op": "error", "p": failed},
        {"op": "close", "p": None},
    ]
    written = [json.dumps(packet) for packet in packets]
    sse = [f"event: stream.packet\nid: x:{number}\ndata: {line}\n\n" for number, line in enumerate(written, 1)]
    log = LogMaker(tmp_path / "cap.ndjson")
    sent = ["".join(f"{line}\n" for line in written)] if lines else sse
    body = {"request_id": "x", "context": {}, "payload": {"query": "Is it day?", "meta": {"model": "gpt-5.2"}}}
    log.turn(path="/v1/assist", body=body, model="gpt-5.2", said=["Good day"], sent=sent)
    page = browser.open(export(log.close()))
    page.until("document.querySelector('#list .row')")
    assert "Is it day?" in listed(page)[0]
    page.click("#list .row")
    page.until("document.querySelector('.conversation')")
    assert page.text(".part.reasoning .said") == "Hm."
    assert page.run("[...document.querySelectorAll('.part.text .said')].map((part) => part.textContent)") == [
        "Is it day?",
        "Good day",
    ]
    page.click("[data-tab=wire]")
    page.until("document.querySelector('#frames').textContent.includes('end: completed')")
    told = page.run(
        "[...document.querySelectorAll('#frames .pair > :nth-child(2)')].map((cell) =>"
        " [...cell.children].slice(2).map((part) => part.textContent)).filter((cell) => cell.length)"
    )
    assert told[2:6] == [["event: thought_trace", "Hm."], ["delta", "Good day"], ["error", "It broke."], ["close", ""]]
    assert page.told(*TROUBLE) == []
    page.close()


def test_all_of_it_works_with_the_keyboard(page: Page) -> None:
    page.run("document.querySelector('#filter').focus()")
    page.press("ArrowDown")
    page.press("End")
    page.until("document.querySelector('.error')")
    assert page.text(".error .message") == "Try again in 12 s."
    page.press("Home")
    page.until("document.querySelector('.part.call')")
    page.run("document.querySelector('[role=tab][aria-selected=true]').focus()")
    page.press("ArrowRight")
    page.until("document.querySelector('#frames .pair')")
    page.press("Escape")
    page.until("!document.body.classList.contains('open') && document.activeElement.id === 'list'")


def test_a_very_long_text_is_shown_when_asked_for(page: Page) -> None:
    page.run("location.hash = '#1'")
    page.until("document.querySelector('.said button.more')")
    assert "needle" not in page.text("#panel")
    assert page.text(".said button.more") == "Show all 200.0 k characters"
    page.click(".said button.more")
    page.until("document.querySelector('#panel').textContent.includes('needle')")


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_narrow_screen(browser: Browser, day: str, dark: bool) -> None:
    page = browser.open(day, width=400, height=800, dark=dark, mobile=True)
    for view in ("", "#0", "#0/wire", "#0/heard", "#3"):
        page.run(f"location.hash = {json.dumps(view)}")
        page.until("document.readyState === 'complete'")
        assert page.run("document.documentElement.scrollWidth") <= 400, view
    page.click(".steps .back")
    page.until("document.querySelector('#list').offsetWidth > 0")
    assert page.run("getComputedStyle(document.body).colorScheme") == "light dark"
    lightness = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert (lightness < 60) == dark
    page.close()


def test_on_a_narrow_screen_every_frame_and_every_event_has_a_row(browser: Browser, day: str) -> None:
    """Side by side they have no room. What is chosen is shown; on a wide screen they are pairs again."""
    page = browser.open(f"{day}#0/wire", width=400, height=900, mobile=True)
    rows = "[...document.querySelectorAll('#frames .pair')]"
    page.until(f"{rows}.length")
    assert page.run(f"{rows}.every((row) => row.querySelectorAll('.cell:not(.none)').length === 1)")
    assert page.run(f"{rows}.every((row) => row.scrollHeight <= row.clientHeight + 1)")
    labels = page.run(f"{rows}.map((row) => row.querySelector('.label').offsetWidth)")
    assert min(labels) > 40
    count = page.run(f"{rows}.length")
    page.click("#frames .pair")
    page.until("document.querySelector('.detail code')")
    page.resize(1280, 900)
    page.until(f"{rows}.length < {count}")
    page.close()


def test_a_crash_is_told_with_the_turn(browser: Browser, tmp_path: Path) -> None:
    """The exit code, what stderr said last, and the text that had arrived."""
    log = LogMaker(tmp_path / "log.ndjson")
    error = {"code": "backend_crashed", "message": "It went away.", "http_status": 502}
    name = log.turn(said=["half an ", "ans"], answer={"error": error}, status=502, outcome="failed", error=error)
    log.recorder.lifecycle("backend_exit", {"code": -9, "stderr": "<b>oops</b>\n", "ended_requests": [name]})
    address = export(log.close())
    for width in (400, 1280):
        page = browser.open(f"{address}#0", width=width)
        page.until("document.querySelector('.conversation')")
        box = page.run("document.querySelector('.error').innerText")
        assert "The child was killed by SIGKILL. Its last words on stderr:" in box
        assert "<b>oops</b>" in box
        assert "half an ans" in page.run("document.querySelector('.conversation').innerText")
        assert page.run("document.documentElement.scrollWidth") <= width
        page.close()


def test_text_can_be_read_on_its_ground(browser: Browser, day: str) -> None:
    """The contrast of every text that is visible, light and dark: 4.5 to 1 at least."""
    for dark in (False, True):
        page = browser.open(f"{day}#0", dark=dark)
        for tab in ("conversation", "wire", "heard"):
            page.click(f"[data-tab={tab}]")
            assert page.run((Path(__file__).with_name("contrast.js")).read_text()) == []
        page.close()


@pytest.mark.deep
def test_five_thousand_turns_and_a_hundred_thousand_frames_stay_quick(browser: Browser, tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "large.ndjson")
    for number in range(5_000):
        log.turn(body={"model": "m", "input": f"question {number}"}, model="m", answer=response(message("b")))
    log.turn(body={"model": "m", "input": "many"}, model="m", said=["piece "])
    path = log.close()
    *before, delta, started, ended = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*before, *[delta] * 100_000, started, ended]))
    page = browser.open(export(path))
    page.until("document.querySelector('#count').textContent === '5,001 turns'")
    assert page.run("document.querySelectorAll('#list .row').length") < 60
    assert page.run(f"{QUICK}(() => {{ document.querySelector('#list').scrollTop = 1e9; }})") < 1000
    opened = (
        "(() => { location.hash = '#5000/wire'; return new Promise((done) => addEventListener('hashchange', done)); })"
    )
    assert page.run(f"{QUICK}({opened})") < 5000
    assert 0 < page.run("document.querySelectorAll('#frames .pair').length") < 60
    assert page.run(f"{QUICK}(() => {{ document.querySelector('#frames').scrollTop = 1e9; }})") < 1000
    page.until("document.querySelector('#frames').textContent.includes('end: completed')")
    page.press("/")
    page.type("question 4321")
    page.until("document.querySelector('#count').textContent === '1 of 5,001 turns'")
    page.close()


def test_nothing_recorded_runs_and_nothing_leaves_the_page(
    browser: Browser, tmp_path: Path, listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    address = export(hostile_log(tmp_path / "hostile.ndjson", port))
    page = browser.open(address)
    count = len(attacks(port))
    page.until("/^\\d+ turns/.test(document.querySelector('#count').textContent)")
    shown = page.run("JSON.parse(document.querySelector('#index').textContent).turns.length")
    assert shown >= count + 2
    for number in range(shown):
        for tab in ("conversation", "wire", "heard"):
            page.run(f"location.hash = '#{number}/{tab}'")
            page.until(f"location.hash === '#{number}/{tab}' && document.querySelector('#turn .panel.{tab}')")
            page.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        page.run("document.querySelectorAll('#frames .pair .cell').forEach((each) => each.click())")
    for attack in attacks(port):
        page.run(f"document.querySelector('#filter').value = {json.dumps(attack)};"
                 " document.querySelector('#filter').dispatchEvent(new Event('input'))")  # fmt: skip
        page.until("document.querySelectorAll('#list .row').length >= 1")
    assert page.run("typeof window.hacked") == "undefined"
    assert page.run("document.querySelectorAll('img, iframe, link, base, object, embed, svg a, form').length") == 0
    assert page.run("document.querySelectorAll('script:not([type])').length") == 1
    assert page.run("document.querySelectorAll('style').length") == 1
    assert {asked.partition("#")[0] for asked in page.requests()} == {address}
    assert page.told(*TROUBLE) == []
    with pytest.raises(BlockingIOError):
        listener.accept()
    page.close()


def test_the_policy_holds_even_if_the_page_were_careless(browser: Browser, day: str, listener: socket.socket) -> None:
    """Markup that gets into the page all the same neither runs nor loads anything."""
    page = browser.open(day)
    host = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert put_markup(page, host) >= 3
    with pytest.raises(BlockingIOError):
        listener.accept()
    page.close()


LONG = 10_000_000


@pytest.mark.deep
def test_ten_megabytes_in_one_text_do_not_stop_the_page(browser: Browser, tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "long.ndjson")
    log.turn(body={"model": "m", "input": "x" * LONG}, said=["y" * LONG], answer=response(message("z" * LONG)))
    page = browser.open(f"{export(log.close())}#0")
    page.until("document.querySelectorAll('.said button.more').length === 2")
    assert page.run("document.querySelector('#panel').textContent.length") < 210_000
    page.click("[data-tab=heard]")
    page.until("document.querySelector('.raw button.more')")
    page.click("[data-tab=wire]")
    page.click("#frames .pair:nth-child(2) .cell")
    page.until("document.querySelector('.detail button.more')")
    page.close()
