"""`turnbridge lab import` of tables and BFCL, and `lab export` for other programs."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.lab.command import run_each, write_suite
from harness import ROOT

from bridge.lab import load_suite
from bridge.lab.variant import find_variant

TOOL: dict[str, Any] = {
    "name": "area.of",
    "description": "An area.",
    "parameters": {
        "type": "dict",
        "properties": {"base": {"type": "integer"}, "unit": {"type": "float", "optional": True}},
        "required": ["base"],
    },
}
STYLES = repr(
    {
        name: {
            "persona": name,
            "task": "Do $5.",
            "tool_call_no_tag": "Write {output_format}. {param_types}",
            "tool_call_with_tag": "Write <TOOLCALL>{output_format}</TOOLCALL>. {param_types}",
            "multiturn_behavior": "Go on.",
            "available_tools": "In {format}: {functions}",
        }
        for name in ("classic", "experimental")
    }
)
LITERAL = f"""
import os
OUTPUT_FORMAT_MAPPING = {{"python": "[f(a=1)]", "json": "[{{}}]", "verbose_xml": "<v/>", "concise_xml": "<c/>"}}
PARAM_TYPE_MAPPING = {{"python": "", "json": "", "verbose_xml": "T", "concise_xml": "T"}}
PROMPT_STYLE_TEMPLATES = {STYLES}
_PLAINTEXT_SYSTEM_PROMPT_TEMPLATE = ("{{persona}}{{task}}{{tool_call_format}}"
    "{{multiturn_behavior}}{{available_tools}}")
_MARKDOWN_SYSTEM_PROMPT_TEMPLATE = "# {{persona}}{{task}}{{tool_call_format}}{{multiturn_behavior}}{{available_tools}}"
os.abort()
"""


def small_wheel(path: Path) -> Path:
    """A wheel with the form of bfcl-eval's, and a few cases."""
    question = [[{"role": "user", "content": "An area?"}]]
    row = {"id": "simple_python_0", "question": question, "function": [TOOL]}
    strange = {"id": "simple_python_1", "question": [[], []], "function": [TOOL]}
    none = {"id": "irrelevance_0", "question": question, "function": [TOOL]}
    answer = {"id": "simple_python_0", "ground_truth": [{"area.of": {"base": [3], "unit": ["", 1]}}]}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bfcl_eval/data/BFCL_v4_simple_python.json", f"{json.dumps(row)}\n{json.dumps(strange)}\n")
        archive.writestr("bfcl_eval/data/possible_answer/BFCL_v4_simple_python.json", json.dumps(answer))
        archive.writestr("bfcl_eval/data/BFCL_v4_irrelevance.json", json.dumps(none))
        archive.writestr("bfcl_eval/constants/default_prompts.py", LITERAL)
    return path


def test_bfcl_from_its_wheel(tmp_path: Path) -> None:
    small_wheel(tmp_path / "bfcl_eval-1.whl")
    (tmp_path / "not.whl").write_text("x")
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("x", "y")
    done, again, wrong, other, filtered = run_each(
        tmp_path,
        ["import", "bfcl", "bfcl_eval-1.whl", "--into", "bfcl"],
        ["import", "bfcl", "bfcl_eval-1.whl", "--into", "bfcl"],
        ["import", "bfcl", "not.whl", "--into", "x"],
        ["import", "bfcl", "other.whl", "--into", "x"],
        ["import", "bfcl", "bfcl_eval-1.whl", "--into", "x", "--tool", "f"],
    )
    assert done.code == 0
    assert done.stderr.splitlines() == [
        "note: 1 left out: simple_python_1: not one turn",
        "note: 2 case(s) written to bfcl/cases, 26 formats to bfcl/formats",
    ]
    none, one = load_suite(tmp_path / "bfcl/cases").cases
    assert (one.id, one.category, one.tools[0].name) == ("simple-python-0", "simple-python", "area_of")
    assert one.tools[0].parameters == {
        "type": "object",
        "properties": {"base": {"type": "integer"}, "unit": {"type": "number"}},
        "required": ["base"],
    }
    assert none.expect.bfcl is not None
    assert (none.expect.bfcl.kind, none.expects_calls, one.expects_calls) == ("irrelevance", False, True)
    formats = sorted((tmp_path / "bfcl/formats").iterdir())
    assert len(formats) == 26
    texts = {path.stem: find_variant(str(path)).text_for(one) for path in formats}
    assert len(set(texts.values())) == 26
    assert texts["bfcl-python-tagged-xml"].startswith(
        "classicDo $5.Write <TOOLCALL>[f(a=1)]</TOOLCALL>. Go on.In xml: "
    )
    assert '<function name="area_of">' in texts["bfcl-python-tagged-xml"]
    assert texts["bfcl-python-json-markdown"].startswith("# classic")
    assert "Apache License 2.0" in (tmp_path / "bfcl/NOTICE.txt").read_text()
    listed, exported = run_each(
        tmp_path, ["cases", "bfcl/cases"], ["export", "bfcl/cases", "--format", "inspect", "--into", "d.jsonl"]
    )
    assert [line.split()[-2:] for line in listed.stdout.splitlines()[:2]] == [["no", "call"], ["tool", "area_of"]]
    assert exported.code == 0
    rows = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert [row["target"] for row in rows] == ["[]", '[{"name":"area_of"}]']
    assert (again.code, wrong.code, other.code, filtered.code) == (2, 2, 2, 2)
    assert "pip download --no-deps bfcl-eval" in wrong.stderr
    assert "is not the wheel of bfcl-eval" in other.stderr
    assert "leave them out for bfcl" in filtered.stderr


def test_tables(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {}}}}}
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bern"}'}}
    asked = [{"role": "user", "content": "Bern?"}]
    rows = [
        {"messages": [*asked, {"role": "assistant", "tool_calls": [call]}], "tools": [tool]},
        {"id": "talk", "category": "own", "input": "Say hi.", "expect": {"calls": "none", "contains": "hi"}},
        {"messages": [*asked, {"role": "assistant", "content": "Rain."}]},
        {"messages": asked},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join([*map(json.dumps, rows), "[]", ""]))
    (tmp_path / "t.csv").write_text(
        "id,input,tools,call,arguments,contains\n"
        'One,Bern?,"[{""name"": ""weather"", ""parameters"": {""properties"": {""city"": {}}}}]",weather,'
        '"{""city"": ""Bern""}",\n'
        ",Say hi.,,,,hi\n"
        ",Bad.,no JSON,,,\n"
    )
    (tmp_path / "u.csv").write_text("question\nx\n")
    lines, table, unknown = run_each(
        tmp_path,
        ["import", "jsonl", "t.jsonl", "--into", "lines.yaml"],
        ["import", "csv", "t.csv", "--into", "table.yaml"],
        ["import", "csv", "u.csv", "--into", "x.yaml"],
    )
    assert "left out: line 4: neither expect, nor messages that end with the assistant's" in lines.stderr
    assert "left out: line 5: not a JSON object" in lines.stderr
    first, second, third = load_suite(tmp_path / "lines.yaml").cases
    assert [(each.id, each.category) for each in (first, second, third)] == [
        ("line-1", "imported"),
        ("talk", "own"),
        ("line-3", "imported"),
    ]
    assert first.expect.calls[0].arguments == {"city": "Bern"}
    assert (third.expect.calls, third.expect.contains) == ((), ("Rain.",))
    assert "left out: line 4: tools is not a JSON array" in table.stderr
    one, two = load_suite(tmp_path / "table.yaml").cases
    assert (one.id, one.tools, one.expect.calls) == ("one", first.tools, first.expect.calls)
    assert (two.id, two.expect.contains) == ("line-3", ("hi",))
    assert unknown.code == 2
    assert "unknown column question. The columns are id, category" in unknown.stderr


NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="promptfoo's assertions are JavaScript, and there is no node")
def test_promptfoo_asserts_what_the_case_expects(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "s.json", "a")
    done, again, wrong = run_each(
        tmp_path,
        ["export", suite, "--format", "promptfoo", "--into", "p.yaml", "-m", "mini"],
        ["export", suite, "--format", "promptfoo", "--into", "p.yaml"],
        ["export", suite, "--format", "word", "--into", "x"],
    )
    assert (done.code, done.stderr) == (0, "note: 1 case(s) written to p.yaml\n")
    assert (again.code, wrong.code) == (2, 2)
    config = yaml.safe_load((tmp_path / "p.yaml").read_text())
    (provider,), (prompt,), (test,) = config["providers"], config["prompts"], config["tests"]
    assert provider["id"] == "openai:chat:mini"
    assert provider["config"]["tools"][0]["function"]["name"] == "get_weather"
    raw = prompt["raw"].removeprefix("{% raw %}").removesuffix("{% endraw %}")
    assert json.loads(raw) == [{"role": "user", "content": "How is it in Bern? (a)"}]
    assert (test["providers"], test["prompts"]) == ([provider["label"]], [prompt["label"]])
    script = test["assert"][0]["value"]

    def verdict(*calls: tuple[str, Any]) -> bool:
        output = [{"function": {"name": name, "arguments": json.dumps(arguments)}} for name, arguments in calls]
        program = f"const check = (output) => {{ {script} }}; console.log(check({json.dumps(output)}))"
        ran = subprocess.run([str(NODE), "-e", program], capture_output=True, text=True, timeout=30, check=True)
        return ran.stdout.strip() == "true"

    assert verdict(("get_weather", {"city": "Bern"}))
    assert not verdict(("get_weather", {"city": "Basel"}))
    assert not verdict()
    assert not verdict(("get_weather", {"city": "Bern"}), ("get_weather", {"city": "Bern"}))


def test_a_dataset_for_inspect(tmp_path: Path) -> None:
    (done,) = run_each(tmp_path, ["export", ROOT / "fixtures/cases", "--format", "inspect", "--into", "d.jsonl"])
    assert done.code == 0
    rows = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    cases = load_suite(ROOT / "fixtures/cases").cases
    assert [row["id"] for row in rows] == [case.id for case in cases]
    for row, case in zip(rows, cases, strict=True):
        # As inspect_ai.dataset reads them: no other role, content in each message, arguments as objects.
        assert {message["role"] for message in row["input"]} <= {"system", "user", "assistant", "tool"}
        assert all(isinstance(message["content"], str | list) for message in row["input"])
        calls = [call for message in row["input"] for call in message.get("tool_calls", ())]
        assert all(isinstance(call["arguments"], dict) and isinstance(call["function"], str) for call in calls)
        assert [call["name"] for call in json.loads(row["target"])] == [call.name for call in case.expect.calls]
        assert len(row["metadata"]["tools"]) == len(case.tools)
    assert any(message.get("tool_calls") for row in rows for message in row["input"])
