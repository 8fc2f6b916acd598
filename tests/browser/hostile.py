"""A log that wants to be more than a log: every member of every record holds what a page must not take for markup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from browser.chromium import Page
from log.export.making import LogMaker

LONG = 300_000


def attacks(port: int) -> list[str]:
    """Texts that run something, or ask for something at a port of ours, in a page that is not careful."""
    host = f"http://127.0.0.1:{port}"
    run = f"window.hacked=1;fetch('{host}/fetched')"
    return [
        f"</script><script>{run}</script>",
        f"<!--<script>{run}</script>-->",
        f"</style><style>@import url({host}/style);*{{background:url({host}/back)}}</style>",
        f'"><img src={host}/image onerror="{run}">',
        f"<svg onload=\"{run}\"><a href='javascript:{run}'>x</a>",
        f"javascript:{run}",
        f'<link rel=stylesheet href={host}/link><iframe src="{host}/frame"></iframe><base href="{host}/">',
        f'<meta http-equiv="refresh" content="0;url={host}/meta">',
        f"{{{{constructor.constructor('{run}')()}}}}${{{run}}}",
        f"data:text/html,<script>{run}</script>",
        "]]> --!> \u2028\u2029 \\u003c/script> \\ \" ' ` &lt;script&gt; %3Cscript%3E",
        "\u202egnp.exe\u202c \u2066abc\u2069 \u200f\u061c \ufeff\x00\x1b[31m\x07 \x85",
        "\U0001f98a \ufffd\ufffe\uffff e\u0301\u0301\u0301 \u0627\u0644\u0639",
        "__proto__",
    ]


def put_markup(page: Page, host: str) -> int:
    """Bring markup into the page that asks for something at `host`, as a careless page would.

    How often the page's policy refused it.
    """
    assert page.run("try { document.body.innerHTML = '<b>x</b>'; false } catch (error) { error instanceof TypeError }")
    page.run(f"""(() => {{
      for (const [tag, name, value] of [["img", "src", "{host}/i"], ["link", "href", "{host}/l"]]) {{
        const element = document.createElement(tag);
        if (tag === "link") element.rel = "stylesheet";
        element.setAttribute(name, value);
        document.body.append(element);
      }}
      return fetch("{host}/x").catch(() => null);
    }})()""")
    page.until("document.readyState === 'complete'")
    return sum("Content Security Policy" in each["entry"]["text"] for each in page.told("Log.entryAdded"))


def hostile_log(path: Path, port: int) -> Path:
    """A log with each of them in every place, and some that are only too large, too deep or broken."""
    log = LogMaker(path)
    for attack in attacks(port):
        body = {
            "model": attack, "instructions": attack, "tools": [{"type": "function", "name": attack}, {"type": attack}],
            "input": [
                {"role": attack, "content": attack},
                {"role": "user", "content": [{"type": "text", "text": attack}, {"type": attack, "image": attack}]},
                {"type": "function_call", "name": attack, "call_id": attack, "arguments": json.dumps({attack: attack})},
                {"type": "function_call_output", "call_id": attack, "output": attack},
                {"type": attack, attack: attack},
            ],
            attack: {attack: [attack]},
        }  # fmt: skip
        item = {"type": "function_call", "id": attack, "name": attack, "call_id": attack, "arguments": attack}
        stream = {"type": attack, "error": {"message": attack}, attack: attack}
        log.turn(
            body=body,
            path=attack,
            req_id=f"req_{attack}",
            model=attack,
            said=[attack, f"<tool_call>{attack}</tool_call>"],
            sent=[f"event: {attack}\ndata: {json.dumps(stream)}\n\n", f": {attack}\n\n", f"data: {attack}\n\n"],
            answer={"object": "response", "id": attack, "status": attack, "output": [item]},
            headers=[(attack, attack)],
            notes=[
                ("tool_call", {"name": attack, "call_id": attack, "source": f"<tool_call>{attack}</tool_call>"}),
                ("tool_repair", {"name": attack, "repairs": [attack]}),
                ("tool_reject", {"reason": attack}),
            ],
            outcome="failed",
            reason=attack,
            error={"code": attack, "message": attack, "type": attack, "param": attack, "http_status": attack},
            calls=[attack],
            repairs=[attack],
        )
        log.frame(f"req_{attack}", attack, {attack: attack})
    log.turn(body={"model": "mock-text", "input": "x" * LONG}, said=["y" * LONG], answer={"z": "z" * LONG})
    deep: Any = "end"
    for _ in range(600):
        deep = {"deeper": deep}
    log.turn(body={"model": "mock-text", "input": "deep"}, said=["x"], sent=['data: {"delta":"\\ud800 alone"}\n\n'])
    path = log.close()
    lines = path.read_bytes().splitlines()
    odd = [
        b'{"ts":"","mono":1,"seq":1,"phase":"client_egress","kind":"x","req_id":"req_1","payload":"\\udfff"}',
        b'{"ts":"<script>","mono":-1e308,"seq":-5,"phase":"turn","kind":"turn_end","req_id":"req_2","payload":{}}',
        json.dumps(json.loads(lines[-3]) | {"payload": deep}).encode(),
        b"</script><script>window.hacked=1</script>",
        b"\xff\xfe\x00",
    ]
    path.write_bytes(b"\n".join([*lines[:-2], *odd, *lines[-2:]]) + b"\n")
    return path
