"""`turnbridge lab render`: what it prints is what a child is sent, byte for byte."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from cli.lab.command import BRIDGE, environment, lab, run_each
from cli.terminal import terminal
from harness import ROOT

SUITE = """
tools:
  wetter: {description: "Das Wetter – überall ☂", parameters: {type: object, properties: {ort: {enum: [Zürich, 東京]}}}}
defaults: {category: words, tools: [wetter]}
cases:
  - {id: plain, input: Grüezi, expect: {calls: none}}
  - {id: instructed, input: Grüezi, expect: {calls: none}, instructions: Be brief.}
  - {id: forced, input: Grüezi, expect: {calls: [{name: wetter}]}, tool_choice: required}
  - {id: without, input: Grüezi, expect: {calls: none}, tools: []}
"""


def rendered(directory: Path, *options: tuple[str, ...]) -> list[tuple[bytes, str]]:
    """(stdout, stderr) with each of these options, on a system that knows nothing but ASCII."""
    runs = [["render", "suite.yaml", *each] for each in options]
    found = run_each(directory, *runs, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert {ran.code for ran in found} == {0}
    return [(ran.stdout.encode(), ran.stderr) for ran in found]


def sent_texts(log: Path) -> dict[tuple[str, str], bytes]:
    """The developer's instructions that the child was sent, by variant and case."""
    asked: dict[str, tuple[str, str]] = {}
    sent: dict[tuple[str, str], bytes] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["kind"] == "client_request":
            cell = record["payload"]["body"]
            asked[record["req_id"]] = cell["variant"], cell["case"]
        elif record["kind"] == "rpc_request" and record["method"] == "thread/start":
            text = record["payload"]["params"]["developerInstructions"] or ""
            sent[asked[record["req_id"]]] = text.encode()
    return sent


def test_the_printed_text_is_the_text_sent_to_the_child(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("blocks: {header: 'Bitte – höflich.'}", encoding="utf-8")
    chosen = ["-V", "spec", "-V", "nonce-tag", "-V", "mine.yaml"]
    lab(
        tmp_path,
        "run",
        "suite.yaml",
        *("--mock-only", "-m", "mock-echo", "-n", "1", "--log-events", "run.ndjson"),
        *chosen,
        PROXY_WARM_THREADS="0",  # so that each turn starts its own thread
    )
    sent = sent_texts(tmp_path / "run.ndjson")
    assert len(sent) == 3 * 4

    names = ("spec", "nonce-tag", "mine.yaml")
    *alone, together, native = rendered(
        tmp_path, *(("-V", name, "--case", "plain") for name in names), (), ("-V", "native")
    )
    for name, (printed, note) in zip(names, alone, strict=True):
        variant = name.removesuffix(".yaml")
        assert printed == sent[variant, "plain"]
        assert note.startswith(f"note: {variant} for plain: {len(printed.decode()):,} characters, about ")
        assert note.endswith(" tokens\n")
    # The client's own instructions stand behind what is injected.
    printed = alone[0][0]
    assert sent["spec", "instructed"].startswith(printed)
    assert sent["spec", "instructed"].endswith(b"Be brief.")
    assert "東京".encode() in printed
    assert sent["spec", "without"] == b""

    # Of several cases each text once, in lines of its own; none for a case without tools.
    printed, note = together
    assert printed == sent["spec", "plain"] + b"\n" + sent["spec", "forced"] + b"\n"
    shown = [line.split(":")[1].strip() for line in note.splitlines()]
    assert shown == ["spec for plain, instructed", "spec for forced", "spec for without"]
    assert "0 characters, about 0 tokens" in note
    assert native[0] == b""


def test_at_a_terminal_and_in_a_pipe_that_closes(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE, encoding="utf-8")
    command = [*BRIDGE, "lab", "render", "suite.yaml", "--case", "plain"]
    with terminal(command, environment(tmp_path), tmp_path) as shown:
        assert "Tool calling instructions:" in shown.wait_for("</tool_call>\r\n")
        assert shown.wait() == 0
    program = 'set -o pipefail; "$@" | true; echo ${PIPESTATUS[0]}'
    done = subprocess.run(
        ["/bin/bash", "-c", program, "sh", *BRIDGE, "lab", "render", str(ROOT / "fixtures/cases")],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "141\n"
    assert all(line.startswith("note: ") for line in done.stderr.splitlines())
