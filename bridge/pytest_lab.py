"""A pytest plugin: a file of cases is a file of tests. Use it with `-p bridge.pytest_lab`.

Files whose names end in `.lab.yaml`, `.lab.yml` or `.lab.json` are collected; each case in each variant is a test. It
passes when all its samples do, fails when one is wrong, and is an error when one never came. The model comes from
--lab-model; the header tells which it is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from bridge.errors import BridgeError
from bridge.lab.ask import Asker
from bridge.lab.case import Case
from bridge.lab.report.explain import explain
from bridge.lab.report.marked import visible_text
from bridge.lab.result import Cell, Result
from bridge.lab.runner import score_sample
from bridge.lab.suite import load_suite
from bridge.lab.variant import LabVariant
from bridge.lab.variant_file import find_variant

MOCK = "mock-tool-call"
ENDINGS = (".lab.yaml", ".lab.yml", ".lab.json")
SHOWN = 2000
"""Characters of an answer that a failed test shows."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """What can be chosen on the command line."""
    group = parser.getgroup("codex-bridge lab")
    group.addoption("--lab-model", help=f"The model to ask. [{MOCK}, which only tries the plugin]")
    group.addoption("--lab-variant", action="append", help="A variant; may be given several times. [spec]")
    group.addoption("--lab-repeat", type=int, default=1, help="How often each case is asked.")
    group.addoption("--lab-timeout", type=float, default=180.0, help="Seconds that an answer may take.")
    group.addoption("--lab-mock-only", action="store_true", help="Ask mock models alone; no Codex is started.")


def pytest_report_header(config: pytest.Config) -> str:
    """Whom the tests are about."""
    if config.getoption("--lab-model") is None:
        return f"codex-bridge lab: no --lab-model is given, so {MOCK} is asked: it tells nothing of any model"
    return f"codex-bridge lab: {_model(config)} is asked"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> LabFile | None:
    """Files of cases."""
    return LabFile.from_parent(parent, path=file_path) if file_path.name.endswith(ENDINGS) else None


class LabFile(pytest.File):
    """A suite."""

    def collect(self) -> Iterator[LabItem]:
        try:
            variants = [find_variant(name) for name in self.config.getoption("--lab-variant") or ["spec"]]
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
        self._missed: _Missed | None = None

    def setup(self) -> None:
        """Ask. What the machinery cannot do is an error of the set-up, and no failure of the model."""
        self._missed = None
        try:
            lab = _lab(self.config)
        except BridgeError as error:
            pytest.fail(error.message, pytrace=False)
        for number in range(self.config.getoption("--lab-repeat")):
            cell = Cell(_model(self.config), self._variant.name, self._case.id, number)
            result = lab.ask(cell, self._case, self._variant)
            if result.error is not None:
                pytest.fail(f"no answer ({result.error['code']}): {result.error['message']}", pytrace=False)
            if not result.passed:
                self._missed = _Missed(result, self._case, self._variant)
                return

    def runtest(self) -> None:
        if self._missed is not None:
            raise self._missed

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, _Missed):
            return excinfo.value.explain()
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, max(self._case.line - 1, 0), f"{self._case.category}: {self.name}"


class _Missed(Exception):
    """An answer was not right."""

    def __init__(self, result: Result, case: Case, variant: LabVariant) -> None:
        super().__init__(result.cell)
        self.result = result
        self.case = case
        self.variant = variant

    def explain(self) -> str:
        """The first line, which a summary shows alone, tells what is wrong."""
        result = self.result
        form = ["form"] if result.form in ("broken", "leaked") else []
        lines = [f"failed: {', '.join([*form, *result.failed_checks])}"]
        lines += [text for _, text in explain(result, self.case, visible_text(result, self.case, self.variant))]
        lines.append(f"form: {result.form}" + (f" ({', '.join(result.repairs)})" if result.repairs else ""))
        lines += [f"call: {call.name} {call.arguments[:SHOWN]}" for call in result.calls]
        lines += [f"answer: {text[:SHOWN]}" for text in result.texts]
        return "\n".join(lines)


class _Lab:
    """The backends, in a thread of their own, for as long as tests run."""

    def __init__(self, config: pytest.Config) -> None:
        self._mock_only = config.getoption("--lab-mock-only") or None
        self._timeout = config.getoption("--lab-timeout")
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._asker: Asker | None = None
        self._stop: trio.Event | None = None
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="codex-bridge-lab")
        self._thread.start()
        self._ready.wait()
        if self._failures:
            self._thread.join()
            raise self._failures[0]

    def ask(self, cell: Cell, case: Case, variant: LabVariant) -> Result:
        """Ask, and score what comes."""
        assert self._asker is not None
        sample, req_id = trio.from_thread.run(self._asker.ask, cell, case, variant, trio_token=self._token)
        return score_sample(cell, case, variant, sample, req_id)

    def close(self) -> None:
        """Stop the backends."""
        assert self._token is not None
        assert self._stop is not None
        self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as failure:  # whoever waits for us has to hear of it
            self._failures.append(failure)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from bridge.cli.lab.running import open_backends
        from bridge.config_file import load_configuration
        from bridge.ids import new_id

        settings, config = load_configuration(mock_only=self._mock_only, store="memory")
        async with open_backends(settings, config) as bridge:
            self._asker = Asker(bridge.router, new_id, timeout=self._timeout)
            self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
            self._ready.set()
            await self._stop.wait()


def _model(config: pytest.Config) -> str:
    return config.getoption("--lab-model") or MOCK


_LAB = pytest.StashKey[_Lab]()


def _lab(config: pytest.Config) -> _Lab:
    if _LAB not in config.stash:
        config.stash[_LAB] = _Lab(config)
        config.add_cleanup(config.stash[_LAB].close)
    return config.stash[_LAB]
