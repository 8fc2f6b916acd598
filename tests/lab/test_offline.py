"""Recorded cells, scored again. (Whole logs are scored by the tests of the command.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.report.making import CASES

from bridge.app.app import open_app
from bridge.lab.ask import Asker, cell_of, rescore
from bridge.lab.result import Cell, Result, score_sample
from bridge.lab.variant import SHIPPED
from bridge.log.read import RecordReader, log_files
from bridge.log.recording import Recording, read_recordings
from bridge.settings import Settings
from bridge.settings.file import FileConfig

CELL = {"model": "m", "variant": "spec", "case": "weather-bern", "repeat": 0}


def recorded(body: Any, path: str = "lab", end: dict[str, Any] | None = None) -> Recording:
    return Recording("req_1", Path("log"), request={"path": path, "body": body}, end=end)


@pytest.mark.parametrize(
    "body",
    [None, "text", {}, CELL | {"repeat": "0"}, CELL | {"model": None}, CELL | {"case": 7}],
)
def test_requests_that_do_not_come_from_the_lab(body: Any) -> None:
    assert cell_of(recorded(body)) is None
    assert cell_of(recorded(CELL, "/v1/responses")) is None
    assert cell_of(recorded(CELL, "/v1/assist")) is None


async def test_why_a_cell_has_no_result() -> None:
    async def found(cell: dict[str, Any], **more: Any) -> Any:
        return await rescore(recorded(cell, **more), CASES, {"spec": SHIPPED["spec"]}, ["m"])

    assert await found({}) is None
    assert await found(CELL | {"case": "gone"}) == "the suite has no case gone"
    assert await found(CELL | {"variant": "short"}) == (
        "the variant short is not selected; use -V with its name or file"
    )
    assert await found(CELL | {"model": "x"}) == "they come from another model, x"
    assert await found(CELL) == "the log ends before they do"


async def test_an_error_before_the_backend_was_asked_stays_an_error() -> None:
    error = {"code": "model_not_found", "message": "No such model.", "http_status": 400}
    end = {"outcome": "failed", "error": error, "total_s": 0.5}
    found = await rescore(recorded(CELL, end=end), CASES, SHIPPED)
    assert isinstance(found, Result)
    assert found.status == "error"
    assert found.error == {"code": "model_not_found", "message": "No such model."}


async def test_the_same_results_from_the_log(tmp_path: Path) -> None:
    """All cases of the small suite, in all variants that are text, on the stand-in."""
    settings = Settings(mock_only=True, store="memory", log_events=str(tmp_path / "log.ndjson"))
    cells = [Cell("mock-tool-call", name, case, 0) for name in ("spec", "short", "nonce-tag") for case in CASES]
    asked: dict[str, Result] = {}
    async with open_app(settings, FileConfig()) as app:
        assert app.log is not None
        asker = Asker(app, timeout=20)
        for cell in cells:
            case, variant = CASES[cell.case], SHIPPED[cell.variant]
            sample, req_id = await asker.ask(cell, case, variant)
            asked[req_id] = score_sample(cell, case, variant, sample, req_id)
    again = [
        await rescore(recording, CASES, SHIPPED)
        for recording in read_recordings(RecordReader(log_files(tmp_path / "log.ndjson")))
    ]
    assert len(again) == len(cells)
    for result in again:
        assert isinstance(result, Result)
        first = asked[result.req_id or ""]
        assert result.seconds == pytest.approx(first.seconds, abs=2)  # they look at the clock one after the other
        assert {**vars_of(result), "seconds": 0} == {**vars_of(first), "seconds": 0}
        assert result.status == "scored"


def vars_of(result: Result) -> dict[str, Any]:
    return {name: getattr(result, name) for name in result.__dataclass_fields__}
