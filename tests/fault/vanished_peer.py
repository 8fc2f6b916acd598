"""A bridge whose clients vanish, in a network of its own, which is switched off under them. Prints what became of it.

A program for `test_client_faults.py`, to be started with `unshare --user --map-root-user --net`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import running_bridge
from server.prompted import MODEL, EventLog, ask, prompted_codex, send_request, wait_for


def switch(state: str) -> None:
    """The only network that there is: `up` or `down`. What is sent while it is down is lost without a word."""
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


def main(directory: Path) -> None:
    switch("up")
    log = EventLog(directory / "events.ndjson")
    settings = {
        "CODEX_BIN": str(prompted_codex(directory)),
        "PROXY_MODELS": MODEL,
        "PROXY_KEEPALIVE": "0.2",
        "PROXY_WRITE_TIMEOUT": "1",
    }
    with running_bridge(directory, f"--log-events={log.path}", **settings) as bridge:
        assert bridge.post("/responses", ask({"text": "hi"})).status_code == 200
        with (
            send_request(bridge, "/v1/responses", ask({"text": "one"}, {"hang": "streamed"}, stream=True)) as streamed,
            send_request(bridge, "/v1/responses", ask({"text": "one"}, {"hang": "waiting"})),
        ):
            assert streamed.recv(1)
            ids = [log.running("streamed"), log.running("waiting")]
            switch("down")
            ends = [wait_for(partial(log.turn_end, req_id), "turn_end", 30) for req_id in ids]
            switch("up")
        for req_id in ids:
            # The child is told after the end is in the log.
            wait_for(partial(log.is_interrupted, req_id), "the interrupt")
        stopped = [log.calls(req_id).count("turn/interrupt") for req_id in ids]
        status = bridge.post("/responses", ask({"text": "hi"})).status_code
        reasons = [end["reason"] for end in ends]
        print(
            json.dumps({"reasons": reasons, "interrupts": stopped, "status": status, "told": bridge.stderr.read_text()})
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
