"""What came back for a case: everything that a score is made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bridge.errors import BridgeError
from bridge.turn.collect import Result, TextOutput
from bridge.turn.events import TurnEvent

EMPTY = "empty_response"
"""The error that a model which says nothing is to a client. Here it is an answer: nothing was called."""


@dataclass(frozen=True, slots=True)
class Called:
    """A call: the function's name and the arguments, as the JSON text that they came as."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is nothing to be scored: the machinery's fault, never the model's."""

    code: str
    message: str
    permanent: bool = False
    """Every further request would fail in the same way, until the operator changes something."""


def failure_of(error: BridgeError) -> Failure:
    """A failure for an error that ended a request.

    The severity alone does not tell which ones are permanent: a prompt that is too long is fatal for its case only.
    """
    no_access = error.http_status == 401 or (error.http_status == 403 and error.cause is None)
    permanent = error.severity == "fatal" and (no_access or error.code in ("model_not_found", "insufficient_quota"))
    return Failure(error.code, error.message, permanent)


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer. `texts` are its messages as the model wrote them, tags and all; `calls` those made natively."""

    texts: tuple[str, ...] = ()
    calls: tuple[Called, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    failure: Failure | None = None


def sample_of(events: Iterable[TurnEvent], seconds: float = 0.0) -> Sample:
    """A sample from the events of a turn whose text was left as it was written."""
    result = Result()
    result.add(events)
    usage, end = result.usage, result.end
    failure = None
    if end is None:
        failure = Failure("no_end", "The answer has no end.")
    elif end.error is not None and end.error.code != EMPTY:
        failure = failure_of(end.error)
    elif end.outcome == "cancelled":
        failure = Failure("cancelled", "The turn was interrupted.")
    return Sample(
        tuple(output.text for output in result.outputs if isinstance(output, TextOutput)),
        tuple(Called(call.name, call.arguments) for call in result.calls),
        usage.input if usage else 0,
        usage.output if usage else 0,
        seconds,
        failure,
    )
