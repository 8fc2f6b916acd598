"""A pytest plugin that runs suites as tests. Use it with `-p bridge.lab.pytest_plugin`.

It collects files whose names end in `.lab.yaml`, `.lab.yml` or `.lab.json`; each case in each variant is a test. A test
passes if all its samples pass, fails if one is wrong, and is an error if a request fails. --lab-model names the model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import trio

from bridge.app.app import open_app
from bridge.errors import BridgeError
from bridge.lab.ask import Asker
from bridge.lab.case import Case
from bridge.lab.result import Cell, Result, score_sample
from bridge.lab.suite import load_suite
from bridge.lab.variant import LabVariant, find_variants
from bridge.settings.file import load_configuration

MOCK = "mock-tool-call"
ENDINGS = (".lab.yaml", ".lab.yml", ".lab.json")
SHOWN = 2000
"""Characters of an answer in the output of a failed test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("turnbridge lab")
    group.addoption("--lab-model", help=f"The model to ask. [{MOCK}, which only tests the plugin]")
    group.addoption("--lab-variant", action="append", help="A variant. Can be given several times. [spec]")
    group.addoption("--lab-repeat", type=int, default=1, help="How often to ask each case.")
    group.addoption("--lab-timeout", type=float, default=180.0, help="Seconds to wait for an answer.")
    group.addoption("--lab-mock-only", action="store_true", help="Ask only mock models; start no Codex.")


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--lab-model") is None:
        return f"turnbridge lab: asking {MOCK}, which says nothing about any model; choose one with --lab-model"
    return f"turnbridge lab: asking {_model(config)}"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> LabFile | None:
    return LabFile.from_parent(parent, path=file_path) if file_path.name.endswith(ENDINGS) else None


class LabFile(pytest.File):
    def collect(self) -> Iterator[LabItem]:
        try:
            variants = find_variants(self.config.getoption("--lab-variant") or ["spec"]).values()
            cases = load_suite(self.path).cases
        except BridgeError as error:
            raise self.CollectError(error.message) from None
        for case in cases:
            for variant in variants:
                yield LabItem.from_parent(self, name=f"{case.id}[{variant.name}]", case=case, variant=variant)


class LabItem(pytest.Item):
    """A case in a variant."""

    def __init__(self, *, case: Case, variant: LabVariant, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._case = case
        self._variant = variant
        self._wrong: Result | None = None

    def setup(self) -> None:
        """Ask. A request that fails is an error of the set-up, not a failure of the model."""
        self._wrong = None
        try:
            lab = _lab(self.config)
        except BridgeError as error:
            pytest.fail(error.message, pytrace=False)
        if self._case.expect.check is not None or self._case.expect.judge is not None:
            pytest.fail("this case has a check in Python or a rubric: run it with `turnbridge lab run`", pytrace=False)
        for number in range(self.config.getoption("--lab-repeat")):
            cell = Cell(_model(self.config), self._variant.name, self._case.id, number)
            result = lab.ask(cell, self._case, self._variant)
            if result.error is not None:
                pytest.fail(f"no answer ({result.error['code']}): {result.error['message']}", pytrace=False)
            if not result.passed:
                self._wrong = result
                return

    def runtest(self) -> None:
        if (result := self._wrong) is None:
            return
        # The first line says what is wrong: pytest's summary shows only that.
        form = ["form"] if result.form in ("broken", "leaked") else []
        lines = [", ".join([*form, *result.failed_checks])]
        lines += [sentence for _, sentence in result.explain(self._case, self._variant)[1]]
        lines.append(f"form: {result.form}" + (f" ({', '.join(result.repairs)})" if result.repairs else ""))
        lines += [f"call: {call.name} {call.arguments[:SHOWN]}" for call in result.calls]
        lines += [f"answer: {text[:SHOWN]}" for text in result.texts]
        pytest.fail("\n".join(lines), pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, max(self._case.line - 1, 0), f"{self._case.category}: {self.name}"


class _Lab:
    """The backends, in a thread of their own while tests run."""

    def __init__(self, config: pytest.Config) -> None:
        self._mock_only = config.getoption("--lab-mock-only") or None
        self._timeout = config.getoption("--lab-timeout")
        self._ready: Future[tuple[Asker, trio.lowlevel.TrioToken, trio.Event]] = Future()
        self._thread = threading.Thread(target=self._run, name="turnbridge-lab")
        self._thread.start()
        try:
            self._asker, self._token, self._stop = self._ready.result()
        except BaseException:
            self._thread.join()
            raise

    def ask(self, cell: Cell, case: Case, variant: LabVariant) -> Result:
        sample, req_id = trio.from_thread.run(self._asker.ask, cell, case, variant, trio_token=self._token)
        return score_sample(cell, case, variant, sample, req_id)

    def close(self) -> None:
        self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as failure:
            if not self._ready.done():
                self._ready.set_exception(failure)

    async def _serve(self) -> None:
        settings, config = load_configuration(mock_only=self._mock_only, store="memory")
        async with open_app(settings, config) as app:
            stop = trio.Event()
            self._ready.set_result((Asker(app, timeout=self._timeout), trio.lowlevel.current_trio_token(), stop))
            await stop.wait()


def _model(config: pytest.Config) -> str:
    return config.getoption("--lab-model") or MOCK


_LAB = pytest.StashKey[_Lab]()


def _lab(config: pytest.Config) -> _Lab:
    if _LAB not in config.stash:
        config.stash[_LAB] = _Lab(config)
        config.add_cleanup(config.stash[_LAB].close)
    return config.stash[_LAB]
