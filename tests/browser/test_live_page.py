"""The live page in a real browser, served by a real bridge: what a person sees and does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.chromium import Browser, Page
from browser.live import (
    CALL,
    MODEL,
    TROUBLE,
    WEATHER,
    in_background,
    live_bridge,
    live_page,
    printed_address,
    rows,
    untroubled,
    write,
)  # fmt: skip
from harness import KEY, OTHER_KEY, TWO_KEYS, RunningBridge
from page.visiting import JSON

HELLO = {"model": "mock-text", "input": "hello there"}
TOLD = "document.querySelector('#turn').innerText"


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge that has answered a few requests."""
    directory = tmp_path_factory.mktemp("live")
    call = [{"reasoning": ["Hm."]}, {"text": f"I look.{CALL}"}, {"usage": {"input": 9, "output": 4, "cached": 2}}]
    failed = [{"deltas": ["half"]}, {"error": {"message": "Try later.", "info": "rateLimitExceeded"}}]
    environment = {"PROXY_API_KEY": TWO_KEYS}
    with live_bridge(directory, call, failed, **environment) as running:
        body = {"model": MODEL, "input": "weather in Bern?", "tools": [WEATHER], "instructions": "Be brief."}
        running.events("/responses", body)
        running.events("/responses", {"model": MODEL, "input": "and in Thun?"})
        assert running.post("/responses", HELLO).status_code == 200
        chat = {"model": "mock-text", "messages": [{"role": "user", "content": "which station?"}]}
        assert running.post("/chat/completions", chat).status_code == 200
        yield running


@pytest.fixture
def page(browser: Browser, bridge: RunningBridge) -> Iterator[Page]:
    """Its page, signed in; at the end nothing may have gone wrong in it, and nothing may have left it."""
    with live_page(browser, bridge) as opened:
        opened.until("document.querySelectorAll('#list .row').length >= 4")
        yield opened


def open_turn(page: Page, text: str) -> None:
    """Open the turn whose row has this text."""
    row = f"[...document.querySelectorAll('#list .row')].find((row) => row.innerText.includes({json.dumps(text)}))"
    page.click(f"#{page.until(f'({row} || {{}}).id')}")
    page.until(f"document.querySelector('#turn .conversation') && {TOLD}.includes({json.dumps(text)})")


def test_the_printed_address_opens_the_page_once(browser: Browser, tmp_path: Path) -> None:
    """The token leaves the address at once; the session that it began outlives a reload."""
    with live_bridge(tmp_path, [{"text": "x"}]) as bridge:
        address = printed_address(bridge)
        page = browser.open(address)
        page.until("document.querySelector('#link').textContent === 'Live'")
        assert page.run("location.href") == f"{bridge.root}/"
        assert "No turns yet" in page.text("#count")
        assert "operator" in page.text("#about")
        page.call("Page.reload")
        page.until("document.querySelector('#link').textContent === 'Live'")
        untroubled(page, bridge)
        page.click("#leave")
        page.until("document.querySelector('.signin input')")
        # The cookie is gone, and the token has been used.
        page.call("Page.navigate", url="about:blank")
        page.call("Page.navigate", url=address)
        page.until("document.querySelector('.signin .bad').textContent.includes('once')")
        assert page.run("location.href") == f"{bridge.root}/"
        page.close()


def test_a_key_signs_in_and_a_wrong_one_does_not(browser: Browser, bridge: RunningBridge) -> None:
    page = browser.open(bridge.root)
    page.until("document.querySelector('.signin input') || document.querySelector('#link').textContent === 'Live'")
    if page.run("document.querySelector('.signin input') === null"):
        page.click("#leave")
    page.click(".signin input")
    page.type("wrong")
    page.press("Enter")
    page.until("document.querySelector('.signin .bad').textContent === 'The bridge does not accept this key.'")
    write(page, ".signin input", KEY)
    page.press("Enter")
    page.until("document.querySelectorAll('#list .row').length >= 4")
    assert page.run("document.querySelector('#signin').hidden")
    page.close()


def test_the_list_shows_the_newest_first(page: Page) -> None:
    shown = rows(page)
    order = [next(i for i, row in enumerate(shown) if text in row) for text in
             ("which station?", "hello there", "and in Thun?", "weather in Bern?")]  # fmt: skip
    assert order == sorted(order)
    assert "1 call, 2 repairs" in shown[order[3]]
    assert "9 → 4" in shown[order[3]]
    assert "failed" in shown[order[2]]
    assert "rate_limit" in shown[order[2]]


def test_a_turn_opens_with_all_that_is_known_of_it(page: Page) -> None:
    open_turn(page, "weather in Bern?")
    assert page.text(".part.call .name") == "weather"
    assert page.text(".part.call pre") == '{\n  "city": "Bern"\n}'
    assert page.text(".part.reasoning .said") == "Hm."
    page.until("document.querySelectorAll('.timeline svg rect.received').length >= 2")
    page.click("[data-tab=heard]")
    assert "repaired — weather" in page.text(".taken.repair .caption")
    page.click("[data-tab=wire]")
    page.until("document.querySelector('#frames .pair')")
    page.run("document.querySelector('#frames').scrollTop = 1e9")
    page.until("document.querySelector('#frames').textContent.includes('end: completed')")
    page.click("[data-tab=context]")
    assert "x-request-id" in page.text("#panel")
    assert "/context" in page.run("location.hash")
    # The address is a bookmark of this view.
    page.call("Page.reload")
    page.until("document.querySelector('.context')")


def test_a_streamed_turn_appears_and_its_text_grows(browser: Browser, tmp_path: Path) -> None:
    steps = [
        {"reasoning": ["Let me think."]}, {"deltas": ["The first words "]}, {"sleep": 1.5},
        {"deltas": ["and the last. "]}, {"sleep": 1}, {"text": CALL}, {"usage": {"input": 7, "output": 3}},
    ]  # fmt: skip
    said = "document.querySelector('.streamed > .choice > .said').textContent"
    with live_bridge(tmp_path, steps) as bridge, live_page(browser, bridge) as page:
        request = in_background(bridge, {"model": MODEL, "input": "tell me", "tools": [WEATHER]})
        page.until("document.querySelector('#list .row .running')")
        page.click("#list .row")
        page.until("document.querySelector('.streamed .said') && document.querySelector('.badge.running')")
        page.until(f"{said} === 'The first words '")
        # Thoughts are folded.
        assert page.run("document.querySelector('.streamed .thought').open") is False
        assert "Let me think." in page.run("document.querySelector('.streamed .thought').textContent")
        page.until(f"{said}.startsWith('The first words and the last.')")
        page.until("document.querySelector('.badge.completed')")
        assert page.text(".part.call .name") == "weather"
        page.until("document.querySelector('#list .row .outcome').textContent === 'completed'")
        assert "7" in page.text(".metrics")
        request.join()


def test_a_crash_is_shown_with_its_stderr(browser: Browser, tmp_path: Path) -> None:
    steps = [{"deltas": ["half an ans"]}, {"stderr": "<b>panicked</b> at main.rs"}, {"signal": 9}]
    with live_bridge(tmp_path, steps, PROXY_MAX_RESTARTS="1") as bridge, live_page(browser, bridge) as page:
        bridge.post("/responses", {"model": MODEL, "input": "go", "stream": False})
        page.until("document.querySelector('#list .row .outcome.failed')")
        page.click("#list .row")
        page.until("document.querySelector('#turn .error')")
        page.until(f"{TOLD}.includes('SIGKILL') && {TOLD}.includes('<b>panicked</b> at main.rs')")
        assert "half an ans" in page.text(".conversation")
        assert page.run("document.querySelectorAll('#turn .error b, #turn .crash b').length") == 0


def test_filters_narrow_the_list_and_are_in_the_address(page: Page) -> None:
    page.press("/")
    page.until("document.activeElement.id === 'filter'")
    page.type("THUN")
    page.until("document.querySelector('#count').textContent === '1 turn'")
    assert "and in Thun?" in rows(page)[0]
    assert page.run("location.hash") == "#/turns?grep=THUN"
    page.call("Page.reload")
    page.until("document.querySelector('#count').textContent === '1 turn'")
    assert page.run("document.querySelector('#filter').value") == "THUN"
    page.click("#tools .few button:last-child")
    page.until("document.querySelectorAll('#list .row').length >= 4")
    for field, value in (("[name=model]", "gpt-5*"), ("#tools select", "failed")):
        write(page, f"#tools {field}" if field.startswith("[") else field, value)
    page.until("document.querySelector('#count').textContent === '1 turn'")
    assert "rate_limit" in rows(page)[0]


def test_a_filter_that_cannot_be_read_says_why(browser: Browser, bridge: RunningBridge) -> None:
    with live_page(browser, bridge, "#/turns?since=yesterday", calm=False) as page:
        page.until("document.querySelector('#count .bad')")
        assert "since" in page.text("#count")
        write(page, "#tools [name=since]", "1h")
        page.until("document.querySelectorAll('#list .row').length >= 4")


def test_a_filtered_list_takes_new_turns_that_match(page: Page, bridge: RunningBridge) -> None:
    write(page, "#tools [name=grep]", "zebra")
    page.until("document.querySelector('#count').textContent === 'No turn matches these filters.'")
    bridge.post("/responses", {"model": "mock-text", "input": "about a zebra"})
    bridge.post("/responses", {"model": "mock-text", "input": "about a horse"})
    page.until("document.querySelector('#count').textContent === '1 turn'")
    assert "about a zebra" in rows(page)[0]


def test_two_turns_are_compared_side_by_side(page: Page) -> None:
    open_turn(page, "hello there")
    page.press("c")
    page.until("document.querySelector('dialog .others button')")
    page.type("which station")
    page.until("document.querySelectorAll('dialog .others button').length === 1")
    page.click("dialog .others button")
    page.until("document.querySelector('#compare .diff')")
    sides = page.run("[...document.querySelectorAll('#compare .side.del, #compare .side.ins')].map((e) => e.innerText)")
    assert any("hello there" in side for side in sides)
    assert any("which station?" in side for side in sides)
    marked = page.run("[...document.querySelectorAll('#compare tr.differs th')].map((e) => e.textContent)")
    assert "Path" in marked
    assert "Model" not in marked


def test_a_turn_is_sent_again_with_an_edited_prompt_and_compared(page: Page) -> None:
    open_turn(page, "hello there")
    page.press("s")
    page.until("document.querySelector('dialog textarea[name=prompt]').value === 'hello there'")
    write(page, "dialog textarea[name=prompt]", "hello you, there")
    assert '"input": "hello you, there"' in page.run("document.querySelector('dialog [name=body]').value")
    page.click("dialog .primary")
    page.until(f"!document.querySelector('dialog') && {TOLD}.includes('hello you, there')")
    page.until("document.querySelector('.badge.completed')")
    page.click("[data-action=origin]")
    page.until("document.querySelector('#compare ins')")
    assert "you" in page.text("#compare ins")


def test_numbers_keep_all_their_digits_when_a_prompt_is_edited(page: Page, bridge: RunningBridge) -> None:
    """JavaScript's own numbers end at 2^53, and lose a trailing zero."""
    tool = '{"type":"function","name":"f","parameters":{"type":"object","n":12345678901234567890,"__proto__":1.0}}'
    body = f'{{"model":"mock-text","input":"exact digits","tools":[{tool}]}}'
    with bridge.client() as client:
        assert client.post("/responses", content=body, headers=JSON).status_code == 200
    page.until("[...document.querySelectorAll('#list .row')].some((row) => row.innerText.includes('exact digits'))")
    open_turn(page, "exact digits")
    page.press("s")
    page.until("document.querySelector('dialog textarea[name=prompt]')")
    write(page, "dialog textarea[name=prompt]", "exact digits again")
    edited = page.run("document.querySelector('dialog [name=body]').value")
    sent = json.loads(edited, parse_float=str)
    assert sent["input"] == "exact digits again"
    assert sent["tools"][0]["parameters"] == {"type": "object", "n": 12345678901234567890, "__proto__": "1.0"}
    page.press("Escape")
    page.until("!document.querySelector('dialog')")


def test_a_turn_shows_what_it_has_cost(browser: Browser, tmp_path: Path) -> None:
    config = tmp_path / "bridge.toml"
    config.write_text('[prices]\ncurrency = "EUR"\n[prices.models]\n"mock-t*" = { input = 1000000, output = 1000000 }')
    with live_bridge(tmp_path, [{"text": "x"}], PROXY_CONFIG=str(config)) as bridge, live_page(browser, bridge) as page:
        used = bridge.post("/responses", HELLO).json()["usage"]
        cost = f"{used['total_tokens']} EUR"
        page.until(f"document.querySelector('#list').innerText.includes({json.dumps(cost)})")
        open_turn(page, "hello there")
        assert cost in page.text("#turn")
        page.click("[data-view=overview]")
        page.until(f"document.querySelector('#charts').innerText.includes({json.dumps(cost)})")


def test_a_body_that_is_not_json_is_not_sent(page: Page) -> None:
    open_turn(page, "which station?")
    page.press("s")
    page.until("document.querySelector('dialog textarea[name=body]')")
    page.click("dialog summary")
    write(page, "dialog textarea[name=body]", '{"model": ')
    page.click("dialog .primary")
    assert "not JSON" in page.text("dialog .bad")
    page.press("Escape")
    page.until("!document.querySelector('dialog')")


def test_a_turn_is_saved_as_a_case(page: Page) -> None:
    open_turn(page, "weather in Bern?")
    page.click("[data-action=case]")
    page.until("document.querySelector('dialog .tocopy')")
    case = page.text("dialog .tocopy")
    assert "weather in Bern?" in case
    assert "name: weather" in case


def test_a_turn_is_exported_in_three_forms(page: Page) -> None:
    open_turn(page, "weather in Bern?")
    page.click(".menu summary")
    links = page.run("[...document.querySelectorAll('.menulist a')].map((link) => link.getAttribute('href'))")
    assert len(links) == 3
    for link in links:
        kind, text = page.run(
            f"fetch({json.dumps(link)}).then(async (answer) =>"
            " [answer.headers.get('content-disposition'), await answer.text()])"
        )
        assert kind.startswith("attachment")
        assert "weather in Bern?" in text
    page.press("Escape")
    page.until("!document.querySelector('.menu').open")
    assert page.run("document.activeElement.tagName") == "SUMMARY"


def test_a_running_turn_is_cancelled(browser: Browser, tmp_path: Path) -> None:
    steps = [{"deltas": ["going"]}, {"hang": True}]
    with live_bridge(tmp_path, steps) as bridge, live_page(browser, bridge) as page:
        request = in_background(bridge, {"model": MODEL, "input": "never ends"})
        page.until("document.querySelector('#list .row .running')")
        page.click("#list .row")
        page.click("[data-action=cancel]")
        page.until("document.querySelector('.badge.cancelled')")
        assert page.run("document.querySelector('[data-action=cancel]') === null")
        request.join()


def test_another_key_sees_its_own_turns_alone(browser: Browser, bridge: RunningBridge) -> None:
    with live_page(browser, bridge, key=OTHER_KEY) as page:
        with bridge.client(key=OTHER_KEY) as client:
            assert client.post("/responses", json={"model": "mock-text", "input": "mine"}).status_code == 200
        page.until("[...document.querySelectorAll('#list .row')].some((row) => row.innerText.includes('mine'))")


def test_the_page_says_when_the_bridge_is_gone(browser: Browser, tmp_path: Path) -> None:
    with live_bridge(tmp_path, [{"text": "x"}]) as bridge, live_page(browser, bridge, calm=False) as page:
        bridge.stop()
        page.until("document.querySelector('#link').textContent === 'Reconnecting…'")


def test_a_session_that_ends_elsewhere_leads_to_the_sign_in(browser: Browser, tmp_path: Path) -> None:
    """What was on the page is gone with it."""
    with live_bridge(tmp_path, [{"text": "x"}]) as bridge, live_page(browser, bridge, calm=False) as page:
        bridge.post("/responses", HELLO)
        page.until("document.querySelector('#list .row')")
        page.click("#list .row")
        page.until("document.querySelector('#turn .conversation')")
        page.run("fetch('/page/session', {method: 'DELETE', headers: {'content-type': 'application/json'}})")
        page.press("o")
        page.until("document.querySelector('.signin input')")
        assert "hello there" not in page.run("document.body.textContent")


def test_all_of_it_works_with_the_keyboard(page: Page) -> None:
    page.press("Tab")
    page.until("document.activeElement.className === 'skip'")
    page.press("Enter")
    page.until("document.activeElement.id === 'main'")
    assert "token" not in page.run("location.hash")
    page.press("?")
    page.until("document.querySelector('dialog kbd')")
    page.press("Escape")
    page.until("!document.querySelector('dialog')")
    page.press("/")
    page.until("document.activeElement.id === 'filter'")
    page.press("ArrowDown")
    page.until("document.activeElement.id === 'list'")
    page.press("Home")
    page.until("document.querySelector('#turn .conversation')")
    first = page.run("location.hash")
    page.press("ArrowDown")
    page.until(f"location.hash !== {json.dumps(first)}")
    page.press("4")
    page.until("document.querySelector('#panel.context')")
    page.press("[")
    page.until(f"location.hash.startsWith({json.dumps(first)})")
    page.press("Escape")
    page.until("location.hash === '#/turns' && document.activeElement.id === 'list'")
    page.press("o")
    page.until("document.querySelector('#charts .tile')")
    page.press("t")
    page.until("!document.querySelector('#overview').hidden")


def test_single_keys_can_be_switched_off(page: Page) -> None:
    page.click("#help")
    page.click("dialog input[type=checkbox]")
    page.press("Escape")
    page.until("!document.querySelector('dialog')")
    page.press("o")
    page.press("/")
    assert page.run("location.hash") in ("", "#/turns")
    assert page.run("document.activeElement.id") != "filter"
    page.run("localStorage.clear()")


def test_the_overview_shows_how_the_bridge_is_doing(page: Page) -> None:
    page.run("location.hash = '#/overview'")
    page.until("document.querySelectorAll('#charts .plot svg').length === 4")
    shown = page.text("#charts")
    for told in (
        "Requests",
        "Latency",
        "Tokens in",
        "By model",
        "mock-text",
        MODEL,
        "app-server",
        "Health",
        "Children",
    ):
        assert told in shown, told
    page.click("[data-hours='24']")
    page.until(
        "location.hash === '#/overview?hours=24' && document.querySelector('[data-hours=\"24\"][aria-pressed=true]')"
    )


def test_nothing_troubles_a_page_that_stays_open(page: Page, bridge: RunningBridge) -> None:
    """Turns that come while the list is scrolled do not move what is being read."""
    for number in range(30):
        bridge.post("/responses", {"model": "mock-text", "input": f"one of many {number}"})
    newest = "document.querySelector('#list .row').innerText"
    page.until(f"{newest}.includes('one of many 29') && {newest}.includes('completed')")
    page.run("document.querySelector('#list').scrollTop = 540")
    page.until("document.querySelector('#list').scrollTop === 540")
    top = "document.querySelector('#list').getBoundingClientRect().top"
    read = f"document.elementFromPoint(200, {top} + 30).closest('.row').innerText"
    before = page.run(read)
    bridge.post("/responses", {"model": "mock-text", "input": "a late one"})
    page.until("document.querySelector('#list').scrollTop === 594")
    assert page.run(read) == before
    assert page.told(*TROUBLE) == []
