"""The laboratory's page in a real browser, opened from its file: what a person sees, and what nobody should."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from browser.chromium import Browser, Page
from browser.hostile import attacks
from lab.report.making import CASES, FENCED, RIGHT, answer, ask, make_case, small_run, trouble, write_results

from bridge.lab.case import Called, Case, ExpectedCall
from bridge.lab.report.html import html_pieces
from bridge.lab.report.summary import summarise
from bridge.lab.result import Cell, CountedResults, Result
from bridge.lab.variant import SHIPPED

TROUBLE = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
VARIANTS = ("spec", "short", "native")


def export(directory: Path, results: Iterable[Result], cases: Mapping[str, Case], **more: int) -> str:
    """The page of a run; its address."""
    counted = CountedResults(write_results(directory / "r.jsonl", results))
    summary = summarise(counted, cases, VARIANTS, suite="suites/small")
    summary = replace(summary, missed=("Missed: m spec: 1 of 2 (50.0 %) passed; at least 80 % should.",))
    page = directory / "report.html"
    page.write_bytes(b"".join(html_pieces(summary, counted, cases, SHIPPED, **more)))
    return page.as_uri()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return export(tmp_path_factory.mktemp("small"), small_run(), CASES)


@pytest.fixture
def page(browser: Browser, small: str) -> Iterator[Page]:
    """The page of the small run; at the end nothing may have gone wrong in it, and nothing may have left it."""
    opened = browser.open(small)
    opened.until("document.querySelector('#count').textContent === '5 cases'")
    yield opened
    assert opened.told(*TROUBLE) == []
    assert {address.partition("#")[0] for address in opened.requests()} == {small}
    opened.close()


def shown(page: Page) -> list[str]:
    """The cases in sight."""
    found: list[str] = page.run(
        "[...document.querySelectorAll('tr.case:not([hidden])')].map((row) => row.firstChild.textContent)"
    )
    return found


def cell(row: int, column: int) -> str:
    return f"button[data-row='{row}'][data-column='{column}']"


def opened(row: int, column: int) -> str:
    """Whether this cell is on the screen."""
    return f'document.querySelector("{cell(row, column)}[aria-current]") && document.querySelector(".sample")'


def test_the_matrix_tells_what_came_of_each_case(page: Page) -> None:
    assert shown(page) == ["weather-bern", "weather-by-force", "two-at-once", "only-talk", "explain-the-tag"]
    assert page.text(cell(1, 0)).split() == ["2/3", "r2", "a1"]
    assert page.text(cell(2, 5)).split() == ["ERROR", "e3"]
    label = page.run(f'document.querySelector("{cell(1, 0)}").getAttribute("aria-label")')
    assert label == "weather-by-force, gpt-5.2-codex, spec: 2 of 3, MIXED; 2 repaired, 1 no call, but one is expected"
    heads = page.run(
        "[...document.querySelectorAll('#matrix thead tr')].map((row) => row.innerText.split(/\\s+/).filter(Boolean))"
    )
    assert heads == [["gpt-5.2-codex", "mini"], [*VARIANTS, *VARIANTS]]
    assert page.text("#told") == "Missed: m spec: 1 of 2 (50.0 %) passed; at least 80 % should."


def test_at_first_all_figures_are_shown(page: Page) -> None:
    told = page.text(".glance")
    for words in ("14/15 93 %", "80–100 %", "pass^3", "trailing_comma a comma before a closing bracket", "timeout"):
        assert words in told
    assert page.run("document.querySelectorAll('.figures svg.bar').length") == 6
    lists = page.run(
        "[...document.querySelectorAll('.compared')].map((list) => "
        "[...list.querySelectorAll('svg')].map((bar) => bar.getAttribute('aria-label')))"
    )
    bars, effects = lists
    assert (len(bars), len(effects)) == (4, 3)
    assert effects[0].startswith("model mini against gpt-5.2-codex: no difference seen (-32.2 points")
    assert bars[0].startswith("short against spec (gpt-5.2-codex): not distinguishable (difference -33.3 points")
    ends = "(line) => ['x1', 'x2'].map((name) => Number(line.getAttribute(name)))"
    drawn = page.run(f"[...document.querySelectorAll('.compared svg line')].slice(0, 2).map({ends})")
    assert drawn[1][0] < drawn[1][1] < drawn[0][0], "the whole interval lies below zero"


def test_typing_into_the_filter_narrows_the_cases(page: Page) -> None:
    page.press("/")
    for wanted, count in (("BERN", 1), ("code_fence", 1), ("choice", 1), ("timeout", 1), ("fail", 4), ("nothing", 0)):
        page.run("document.querySelector('#filter').select()")
        page.type(wanted)
        page.until(f"document.querySelector('#count').textContent === '{count} of 5 cases'")
        assert len(shown(page)) == count
    groups = page.run("[...document.querySelectorAll('tr.category')].filter((row) => !row.hidden).length")
    assert groups == 0


def test_only_differences_and_only_a_category(page: Page) -> None:
    page.click("#differences")
    page.until("document.querySelector('#count').textContent === '4 of 5 cases'")
    assert "explain-the-tag" not in shown(page)
    page.run("document.querySelector('#category').value = 'no-tool-needed';"
             " document.querySelector('#category').dispatchEvent(new Event('change'))")  # fmt: skip
    page.until("document.querySelector('#count').textContent === '1 of 5 cases'")
    assert shown(page) == ["only-talk"]


def test_another_form_is_a_difference_too(browser: Browser, tmp_path: Path) -> None:
    forms = {"mended": ("clean", "repaired"), "alike": ("repaired", "repaired")}
    results = [
        answer(Cell("m", variant, case, repeat), form)
        for case, both in forms.items()
        for variant, form in zip(("spec", "short"), both, strict=True)
        for repeat in range(2)
    ]
    page = browser.open(export(tmp_path, results, {}))
    page.until("document.querySelector('#count').textContent === '2 cases'")
    page.click("#differences")
    page.until("document.querySelector('#count').textContent === '1 of 2 cases'")
    assert shown(page) == ["mended"]
    page.close()


def test_a_cell_opens_with_all_its_samples(page: Page) -> None:
    page.click(cell(1, 0))
    page.until("document.querySelector('.sample')")
    assert page.text(".turnhead h2").split("\n") == ["weather-by-force", "2/3 MIXED"]
    facts = page.text(".turnhead .facts").split(" · ")
    assert facts == ["single", "gpt-5.2-codex", "spec", "95 % interval 21–94 %", "pass@3 100 %", "pass^3 0 %"]
    heads = page.run("[...document.querySelectorAll('.sample h3')].map((head) => head.firstChild.textContent)")
    assert heads == ["Sample 2", "Sample 1", "Sample 3"], "what went wrong comes first"
    assert page.text(".sample .wrongs").split("\n") == [
        "count Expected 1 call, got none.",
        "choice tool_choice is function get_weather, but nothing was called.",
    ]
    assert page.text(".sample .raw") == "I cannot run tools here."
    repaired = ".sample:nth-of-type(2)"
    assert page.text(f"{repaired} .wrongs").startswith("trailing_comma a comma before")
    assert page.text(f"{repaired} .caption") == "repaired — get_weather: trailing_comma, code_fence"
    tags = page.run(f"[...document.querySelectorAll('{repaired} .raw .tag')].map((tag) => tag.textContent)")
    assert tags == ["<tool_call>", "</tool_call>"]
    assert page.text(f"{repaired} .raw").endswith(FENCED.partition("\n")[2])
    assert page.text(f"{repaired} .part.call pre") == '{\n  "city": "Bern"\n}'
    assert page.text(f"{repaired} .part.due .name") == "get_weather"
    assert '"$same": "Bern"' in page.text(f"{repaired} .part.due pre")
    assert "How is it in Bern?" in page.text(".folded")


def test_the_injected_text_of_a_variant_can_be_read(page: Page) -> None:
    page.run("location.hash = '#1/1'")
    page.until(opened(1, 1))
    page.click(".injected summary")
    page.until("document.querySelector('.injected pre')")
    text = page.run("document.querySelector('.injected pre').textContent")
    assert text == SHIPPED["short"].text_for(CASES["weather-by-force"])
    page.run("location.hash = '#1/2'")
    page.until("document.querySelector('.none.note')")
    assert page.text(".none.note") == "No text is injected in this variant."


def test_errors_of_the_machinery_are_shown_apart(page: Page) -> None:
    page.run("location.hash = '#2/5'")
    page.until("document.querySelector('.sample div.error')")
    assert page.text(".sample div.error").split("\n")[0] == "timeout a request error; it does not count"
    assert page.run("document.querySelectorAll('.sample .wrongs').length") == 0


def test_all_of_it_works_with_the_keyboard(page: Page) -> None:
    page.run("document.querySelector('#filter').focus()")
    page.press("ArrowDown")
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.press(key)
    page.until(opened(1, 1))
    assert page.run("document.querySelectorAll('#matrix button[tabindex=\"0\"]').length") == 1
    page.run("document.querySelector('[role=tab][aria-selected=true]').focus()")
    page.press("ArrowRight")
    page.until(f"{opened(1, 2)} && document.activeElement.getAttribute('role') === 'tab'")
    page.click(".steps button:last-child")
    page.until(opened(2, 2))
    page.press("Escape")
    page.until("!document.body.classList.contains('open') && document.activeElement.dataset.row === '2'")
    assert "All cases" in page.text("#turn")
    page.press("End")
    page.until("document.activeElement.dataset.row === '4'")


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_narrow_screen_and_can_be_read(browser: Browser, small: str, dark: bool) -> None:
    contrast = (Path(__file__).with_name("contrast.js")).read_text()
    for width in (400, 1400):
        page = browser.open(small, width=width, height=800, dark=dark, mobile=width == 400)
        for view in ("", "#1/0", "#1/1", "#2/5"):
            page.run(f"location.hash = {json.dumps(view)}")
            row, _, column = view[1:].partition("/")
            page.until(opened(int(row), int(column)) if view else "document.querySelector('.glance')")
            assert page.run("document.documentElement.scrollWidth") <= width, view
            assert page.run(contrast) == [], view
        if width == 400:
            page.click(".steps .back")
            page.until("document.querySelector('#matrix').offsetWidth > 0")
        page.close()


def large_run() -> Iterator[Result]:
    """60 cases, 3 variants, 5 repetitions; some texts are long, one is very long."""
    for number in range(900):
        made = Cell("m", VARIANTS[number % 3], f"case-{number // 15:02}", number % 15 // 3)
        text = f"{'word ' * (40_000 if number == 7 else 200)}{RIGHT}"
        yield answer(
            made, "clean", text, calls=[Called("get_weather", '{"city":"Bern"}')], failed=["values"] * (number % 7 == 0)
        )


QUICK = """(async (act) => {
  const start = performance.now();
  await act();
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
})"""
"""How many milliseconds something takes until it is drawn. Once of three times is enough: other tests run beside it."""


def test_sixty_cases_in_three_variants_five_times_stay_quick(browser: Browser, tmp_path: Path) -> None:
    cases = {name: make_case(name, f"group-{index % 9}", ExpectedCall("get_weather", {"city": "Bern"}))
             for index, name in enumerate(f"case-{number:02}" for number in range(60))}  # fmt: skip
    page = browser.open(export(tmp_path, large_run(), cases))
    page.until("document.querySelector('#count').textContent === '60 cases'")
    filtering = (
        "const box = document.querySelector('#filter'); box.value = 'case-1'; box.dispatchEvent(new Event('input'));"
    )
    assert min(page.run(f"{QUICK}(() => {{ {filtering} }})") for _ in range(3)) < 500
    assert len(shown(page)) == 10
    opening = (
        "(() => { location.hash = '#HASH';"
        " return new Promise((done) => addEventListener('hashchange', done, {once: true})); })"
    )
    row = page.run(
        "JSON.parse(document.querySelector('#index').textContent).cases.findIndex((row) => row.id === 'case-00')"
    )
    # In turn: what is open already cannot be opened.
    cells = ("3/1", f"{row}/1")
    taken = [[page.run(f"{QUICK}({opening.replace('HASH', cell)})") for cell in cells] for _ in range(3)]
    for times in zip(*taken, strict=True):
        assert min(times) < 1000
    page.until("document.querySelector('.sample button.more')")
    # A long text is cut; its end, with the call in it, comes when it is asked for.
    assert page.run("document.querySelector('#turn').textContent.length") < 60_000
    page.run("document.querySelectorAll('.raw button.more').forEach((each) => each.click())")
    page.until("document.querySelector('#turn').textContent.length > 200000")
    assert page.told(*TROUBLE) == []
    page.close()


def test_samples_that_are_not_in_the_page_are_told(browser: Browser, tmp_path: Path) -> None:
    results = [answer(Cell("m", "spec", "weather-bern", number), "clean", RIGHT) for number in range(12)]
    page = browser.open(f"{export(tmp_path, results, CASES, samples=7)}#0/0")
    page.until("document.querySelector('.sample')")
    assert "5 samples left out of this page" in page.text("#told")
    assert page.run("document.querySelectorAll('.sample').length") == 5
    page.click("#turn > button.more")
    page.until("document.querySelectorAll('.sample').length === 7")
    assert "5 samples of this cell are counted, but not in this page." in page.text("#turn")
    page.close()


def test_without_a_suite_the_answers_are_still_shown(browser: Browser, tmp_path: Path) -> None:
    page = browser.open(f"{export(tmp_path, small_run(), {})}#0/0")
    page.until("document.querySelector('.sample')")
    assert "The suite was not available" in page.text(".notice")
    assert page.text(".sample .part.call .name") == "get_weather"
    page.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port that would see whatever a page asks for there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def hostile(texts: list[str]) -> tuple[list[Result], dict[str, Case]]:
    """A run in which everything that can be named or said is an attack."""
    results: list[Result] = []
    cases: dict[str, Case] = {}
    for text in texts:
        due = ExpectedCall(text, {text: text}, {text: {"$any": [text]}})
        made = make_case(
            text, text, due, asked=text, contains=(text,), lacks=(text,), tags=(text,), notes=text, instructions=text
        )
        cases[text] = replace(made, items=(*ask(text), *ask(f"<tool_call>{text}")))
        one = Cell(texts[0], texts[1], text, 0)
        called = [Called(text, json.dumps({text: text})), Called(text, text)]
        said = f"<tool_call>{text}</tool_call>{RIGHT}"
        results += [
            answer(
                one,
                "broken",
                said,
                text,
                calls=called,
                failed=["values", "name", "text"],
                repairs=[text],
                rejections=[text],
            ),
            trouble(one._replace(repeat=1), text, text),
            trouble(one._replace(variant=text), text, text),
            replace(answer(one._replace(repeat=2), "leaked", said), req_id=text),
        ]
    return results, cases


def test_nothing_recorded_runs_and_nothing_leaves_the_page(
    browser: Browser, tmp_path: Path, listener: socket.socket
) -> None:
    texts = attacks(listener.getsockname()[1])
    results, cases = hostile(texts)
    address = export(tmp_path, results, cases)
    page = browser.open(address)
    page.until(f"document.querySelector('#count').textContent === '{len(texts)} cases'")
    for row in range(len(texts)):
        for column in (0, row % len(texts)):
            page.run(f"location.hash = '#{row}/{column}'")
            page.until(f'document.querySelector("{cell(row, column)}[aria-current]")')
            page.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    for text in texts:
        page.run(f"document.querySelector('#filter').value = {json.dumps(text)};"
                 " document.querySelector('#filter').dispatchEvent(new Event('input'))")  # fmt: skip
        assert len(shown(page)) >= 1
    assert page.run("typeof window.hacked") == "undefined"
    assert page.run("document.querySelectorAll('img, iframe, link, base, object, embed, svg a, form').length") == 0
    assert page.run("document.querySelectorAll('script:not([type])').length") == 1
    assert page.run("document.querySelectorAll('style').length") == 1
    assert {asked.partition("#")[0] for asked in page.requests()} == {address}
    assert page.told(*TROUBLE) == []
    with pytest.raises(BlockingIOError):
        listener.accept()
    page.close()
