"""`turnbridge log export` on the log of a real bridge."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from cli.log.exported import QUESTION, ask_everything, typed
from harness import ROOT, running_bridge

HAR = jsonschema_rs.validator_for(json.loads((ROOT / "tests/log/export/har.schema.json").read_text()))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with five requests."""
    directory = tmp_path_factory.mktemp("exported")
    path = directory / "day.ndjson"
    with running_bridge(directory, "--mock-only", "--log-events", str(path)) as bridge:
        ask_everything(bridge)
    return path


def rows(*arguments: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in typed("export", *arguments, "--jsonl", "-").stdout.splitlines()]


def test_rows_tell_the_answers(log: Path) -> None:
    echo, text, call, *refused = rows(log)
    assert (echo["text"], echo["streamed"], echo["status"]) == (QUESTION, True, 200)
    assert (text["text"], text["finish_reason"], text["path"]) == ("mock response text", "stop", "/v1/chat/completions")
    assert [(each["name"], "parsed" in each) for each in call["calls"]] == [("weather", True)]
    assert {row["error"]["code"] for row in refused} >= {"model_not_found"}
    assert all(row["outcome"] == "failed" and row["status"] >= 400 for row in refused)


FILTERS = {
    "--model mock-*": 4,
    "--outcome failed:model_not_found": 1,
    "--grep FOX": 1,
    "--until 2020-01-01": 0,
    "--limit 2": 2,
}


def test_filters_choose_requests(log: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        counts = pool.map(lambda typed: len(rows(log, *typed.split())), FILTERS)
    assert dict(zip(FILTERS, counts, strict=True)) == FILTERS


def test_the_archive_fits_the_schema(log: Path, tmp_path: Path) -> None:
    typed("export", log, "--har", tmp_path / "day.har")
    har = json.loads((tmp_path / "day.har").read_text())
    HAR.validate(har)
    assert [entry["response"]["status"] for entry in har["log"]["entries"]][:4] == [200, 200, 200, 400]
    stream = har["log"]["entries"][0]["response"]["content"]
    assert stream["mimeType"].startswith("text/event-stream")
    assert stream["text"].startswith("event: response.created\n")


def test_the_page_is_the_same_in_a_file_and_on_stdout(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "day.html"
    typed("export", log, "--html", page)
    assert page.read_bytes() == typed("export", log, "--html", "-").stdout
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["day.html"]


def test_requests_that_are_left_out_are_reported(log: Path, tmp_path: Path) -> None:
    done = typed("export", log, "--html", tmp_path / "day.html", "--limit", "2")
    assert b"3 earlier request(s) left out (--limit)" in done.stderr
    assert b"--since" in done.stderr


def test_a_broken_log_is_exported_as_far_as_it_goes(log: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.ndjson"
    broken.write_bytes(b"not ours\n" + log.read_bytes()[:-40])
    done = typed("export", broken, "--html", tmp_path / "broken.html")
    assert b"1 line(s) are not event log records" in done.stderr
    assert b"torn" in done.stderr
    assert b"torn" in (tmp_path / "broken.html").read_bytes()


def test_mistakes_are_one_line(log: Path, tmp_path: Path) -> None:
    assert b"--html FILE" in typed("export", log, code=2).stderr
    assert b"--html FILE" in typed("export", log, "--har", "-", "--jsonl", "-", code=2).stderr
    assert b"the log itself" in typed("export", log, "--jsonl", log, code=2).stderr
    assert b"cannot be written" in typed("export", log, "--jsonl", tmp_path / "none/x", code=2).stderr
    assert b"does not exist" in typed("export", tmp_path / "none", "--jsonl", "-", code=2).stderr
    assert b"--outcome" in typed("export", log, "--jsonl", "-", "--outcome", "good", code=2).stderr


def test_a_device_stays_one(log: Path) -> None:
    typed("export", log, "--jsonl", "/dev/null")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_the_page_s_parts_belong_to_the_package() -> None:
    """They are in the package, so a wheel contains them."""
    import bridge.log.export.html as module

    parts = Path(str(module.__file__)).with_name("page")
    assert {f"{name}.js" for name in module.SCRIPTS} | {"frame.html", "page.html", "page.css"} == {
        path.name for path in parts.iterdir()
    }
