"""The page, as bytes; tests/browser looks at it with a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from lab.report.making import CASES, RIGHT, answer, make_case, small_summary, trouble

from bridge.lab.report.html import html_pieces
from bridge.lab.report.summary import summarise
from bridge.lab.result import Cell, Result
from bridge.lab.variant import SHIPPED

BLOCK = re.compile(rb'<script type="application/json" id="([^"]+)">([^<]*)</script>')


def made(*results: Result, **more: Any) -> bytes:
    return b"".join(html_pieces(summarise(results, CASES), results, CASES, SHIPPED, **more))


def blocks(page: bytes) -> dict[str, Any]:
    return {name.decode(): json.loads(data) for name, data in BLOCK.findall(page)}


def samples(page: bytes) -> list[str]:
    return [name for name in blocks(page) if name.startswith("s")]


def test_every_cell_has_its_samples_and_every_case_its_texts(tmp_path: Path) -> None:
    summary, results = small_summary(tmp_path / "r")
    found = blocks(b"".join(html_pieces(summary, results, CASES, SHIPPED)))
    assert len([name for name in found if name.startswith("s")]) == 90
    case = found["k1"]
    assert case["choice"] == "function get_weather"
    assert case["asked"] == [["user", "text", "How is it in Bern?", "", ""]]
    assert case["expect"]["calls"][0]["arguments"] == '{"city":{"$same":"Bern"}}'
    spec, short, native = case["injected"][:3]
    assert native is None
    assert found[f"t{spec}"] == SHIPPED["spec"].text_for(CASES["weather-by-force"])
    assert found[f"t{short}"] == SHIPPED["short"].text_for(CASES["weather-by-force"])
    # Cases with the same tools and the same choice share a text.
    assert found["k0"]["injected"][0] == found["k2"]["injected"][0]


def test_the_policy_lets_through_one_script_and_one_style_and_no_request() -> None:
    page = made(answer(Cell("m", "spec", "weather-bern", 0), "clean", RIGHT))
    policy = (re.search(rb'Content-Security-Policy" content="([^"]+)"', page) or [b"", b""])[1].decode()
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["trusted-types"] == "'none'"
    for tag, rule in ((b"script", "script-src"), (b"style", "style-src")):
        (source,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(source).digest()).decode()}'"
    assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)", page)
    assert not re.search(rb'(innerHTML|insertAdjacentHTML|document\.write|style="|onclick=)', page)


def test_the_page_has_the_first_samples_of_a_cell_and_counts_the_rest() -> None:
    results = [answer(Cell("m", "spec", "weather-bern", number), "clean", "x" * 1000) for number in range(9)]
    page = made(*results, samples=4)
    assert samples(page) == ["s0-0-0", "s0-0-1", "s0-0-2", "s0-0-3"]
    index = blocks(page)["index"]
    assert index["left_out"] == 5
    assert (index["cases"][0]["cells"][0]["kept"], index["cases"][0]["cells"][0]["scored"]) == (4, 9)
    page = made(*results, max_bytes=3000)
    assert len(samples(page)) == 2
    assert blocks(page)["index"]["left_out"] == 7


def test_a_sample_says_what_is_wrong_with_it() -> None:
    cell = Cell("m", "spec", "weather-bern", 0)
    wrong = answer(cell, "absent", "I cannot.", failed=["count"])
    found = blocks(made(wrong, trouble(cell._replace(repeat=1))))
    assert found["s0-0-0"]["failed"] == [["count", "Expected 1 call, got none."]]
    assert found["s0-0-0"]["texts"] == [[["I cannot.", "text", ""]]]
    assert found["s0-0-1"]["error"] == {"code": "timeout", "message": "No answer within 180 s."}


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_text_can_leave_its_script_element(name: str, text: str) -> None:
    cell = Cell(name, name, text, 0)
    page = made(
        answer(cell, "broken", text + "</script>" + name, rejections=[text]), trouble(cell._replace(repeat=1), text)
    )
    found = blocks(page)
    assert found["index"]["cases"][0]["id"] == text
    assert found["s0-0-0"]["texts"] == [[[f"{text}</script>{name}", "text", ""]]]
    assert page.count(b"</script>") == len(found) + 1


def test_half_a_character_in_a_suite_does_not_stop_it() -> None:
    case = replace(make_case("a", "b\ud800"), notes="\udfff")
    result = answer(Cell("m", "spec", "a", 0), "absent", "hello")
    page = b"".join(html_pieces(summarise([result], {"a": case}), [result], {"a": case}, SHIPPED))
    assert blocks(page)["k0"]["notes"] == "\ufffd"
