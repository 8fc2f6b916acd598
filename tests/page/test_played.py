"""A bridge that answers from a log has the page, too."""

from __future__ import annotations

from pathlib import Path

from harness import ROOT, running_bridge
from page.visiting import opened, visitor

from bridge.log.read import RecordReader
from bridge.log.recording import read_recordings

LOG = ROOT / "fixtures" / "logs" / "current.ndjson"


def test_a_played_turn_shows_its_messages(tmp_path: Path) -> None:
    """They are those of the recording."""
    (recording, *_) = [
        each
        for each in read_recordings(RecordReader([LOG]))
        if each.path == "/v1/responses" and each.streamed and each.body and (each.end or {})["outcome"] == "completed"
    ]
    with running_bridge(tmp_path, f"--replay={LOG}") as bridge, visitor(bridge) as client:
        name = bridge.post("/responses", recording.body).headers["x-request-id"]
        assert opened(client, name)["row"]["outcome"] == "completed"
        wire = client.get(f"/page/api/turns/{name}/wire").json()
        assert [frame[2:4] for frame in wire["frames"]] == [[frame.kind, frame.method] for frame in recording.frames]
        assert client.get("/page/api/about").json()["live"] is True
