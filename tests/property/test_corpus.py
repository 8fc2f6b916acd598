"""Every input that has shown something to a fuzzer is tried again (`scripts/fuzz` looks for more)."""

from __future__ import annotations

import pytest
from fuzz.targets import TARGETS
from warm import ROOT

CORPUS = ROOT / "fixtures/corpus"


@pytest.mark.parametrize("target", TARGETS)
def test_no_kept_input_breaks_a_promise(target: str) -> None:
    """Whatever comes from outside is read or refused; `tests/fuzz` has what each target promises."""
    inputs = sorted((CORPUS / target).iterdir())
    assert 0 < len(inputs) <= 100
    for path in inputs:
        data = path.read_bytes()
        assert len(data) <= 4096
        try:
            TARGETS[target](data)
        except BaseException as error:
            error.add_note(f"with {path.relative_to(ROOT)}")
            raise


def test_every_corpus_has_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
