"""The metrics at /metrics: each family with its samples, read from where they are counted.

Loaded with the first request for them, because the library that writes the format is large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from bridge import __version__
from bridge.app.metrics import Sources
from bridge.app.shared_limits import SharedLimits
from bridge.appserver.supervisor import Pool, Supervisor
from bridge.budgets import PARTS, Standing
from bridge.counts import Histogram

PREFIX = "turnbridge"
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4.encode()

Row = tuple[str, ...]


class Exposition:
    """A registry of its own, so that two bridges in one program do not mix, and the collector in it."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.budgets: list[Standing] = []
        """As they were when the page was requested."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def text(self) -> bytes:
        """Everything, as it is now."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: the registry would collect everything once to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families; the registry asks for them."""
        yield from _edge(self._sources)
        yield from _turns(self._sources)
        yield from _children(self._sources)
        yield from _budgets(self.budgets)
        yield from _bridge(self._sources)
        yield from _shared(self._sources.admission.shared)


def _edge(sources: Sources) -> Iterator[Metric]:
    counts = sources.counts
    yield _counters("http_requests", "Requests that have ended.", ("method", "route", "status"), counts.requests)
    yield _histograms("http_request_seconds", "From a request's head to its last byte.", ("route",), counts.seconds)
    yield _gauge("http_requests_open", "Requests that are being answered.", counts.open)
    yield _gauge("websockets_open", "WebSocket connections.", counts.sockets)
    yield _counters("refusals", "Requests that were refused without a turn.", ("code",), counts.refusals)
    yield _counter("keepalives", "Comments that kept a silent stream alive.", counts.keepalives)


def _turns(sources: Sources) -> Iterator[Metric]:
    counts = sources.counts
    labels = ("protocol", "model", "outcome")
    yield _counters("turns", "Turns that have ended.", labels, counts.turns)
    yield _counters("key_turns", "Turns that have ended, by the label of the key.", ("key", "outcome"), counts.keys)
    yield _counters("failures", "Requests for a turn that got no answer.", ("code", "side"), counts.failures)
    yield _counters("tokens", "Tokens, as the provider counts them.", ("model", "kind"), counts.tokens)
    costs = {row: cost / 10**12 for row, cost in counts.costs.items()}
    yield _counters("cost", "Cost of the tokens, in the currency of [prices].", ("model",), costs)
    yield _histograms("first_event_seconds", "From arrival to the first event.", ("backend",), counts.first_event)
    labels = ("from", "to", "reason")
    yield _counters("fallbacks", "Models asked instead of one that failed.", labels, counts.fallbacks)
    resting: dict[Row, int] = {(name,): rests for name, rests in sources.breakers.resting().items()}
    yield _gauges("backend_resting", "1 while a backend is skipped after failures.", ("backend",), resting)
    running: dict[Row, int] = {(name,): runner.turns for name, runner in sources.runners.items()}
    yield _gauges("turns_in_flight", "Turns that run.", ("backend",), running)
    yield _gauge("turns_queued", "Requests that wait for a slot.", sources.admission.waiting)
    yield _gauge("turns_waiting", "Requests whose turn has not begun.", counts.waiting)
    yield _counter("turns_shed", "Turns refused because of PROXY_MAX_RSS.", sources.memory.shed)
    yield _counter("events", "Events of answers; a run of text deltas that came together is one.", counts.events)
    yield _counter("event_batches", "How often events were taken.", counts.batches)
    yield _counter("ignored_fields", "Fields of requests that were left out.", counts.ignored)
    yield _counters("tool_call_repairs", "Repairs of tool calls in text.", ("repair",), counts.repairs)
    yield _counters("tool_call_rejections", "Blocks that were no tool call.", ("reason",), counts.rejections)
    yield _counter(
        "tool_call_invalid_arguments", "Tool calls with arguments that are not JSON.", counts.invalid_arguments
    )


def _budgets(standings: list[Standing]) -> Iterator[Metric]:
    labels = ("key", "budget")

    def amounts(read: Callable[[Standing], int]) -> dict[Row, float]:
        return {
            (each.key or "all", str(each.budget)): read(each) / (PARTS if each.budget.is_money else 1)
            for each in standings
        }

    yield _gauges("budget_spent", "What was used in the present window.", labels, amounts(lambda each: each.spent))
    yield _gauges("budget_left", "What is left in the present window.", labels, amounts(lambda each: each.left))


def _children(sources: Sources) -> Iterator[Metric]:
    children = [
        (name, supervisor)
        for name, runner in sources.runners.items()
        if isinstance(runner, Pool)
        for supervisor in runner.supervisors
    ]

    def total(what: str, text: str, read: Callable[[Supervisor], int]) -> Metric:
        sums: dict[Row, int] = {}
        for name, supervisor in children:
            sums[(name,)] = sums.get((name,), 0) + read(supervisor)
        return _counters(what, text, ("backend",), sums)

    states: dict[Row, int] = {}
    for name, supervisor in children:
        states[name, supervisor.state] = states.get((name, supervisor.state), 0) + 1
    yield _gauges("children", "Children, by what they are doing.", ("backend", "state"), states)
    yield total("child_restarts", "Children that ended and were started again.", lambda each: each.restarts)
    yield total("child_reads", "Reads of their output.", lambda each: each.counts.reads)
    yield total("child_lines", "Lines of their output.", lambda each: each.counts.lines)
    yield total("child_garbage_lines", "Lines that were no message.", lambda each: each.counts.garbage)
    yield total("child_oversize_lines", "Lines too long to keep.", lambda each: each.counts.oversize)
    yield total("child_stray_replies", "Replies to no open call.", lambda each: each.counts.strays)
    asked: dict[Row, int] = {}
    unanswered: dict[Row, int] = {}
    for name, supervisor in children:
        for found, into in ((supervisor.counts.asked, asked), (supervisor.counts.unanswered, unanswered)):
            for (method,), count in found.items():
                into[name, method] = into.get((name, method), 0) + count
    yield _counters("child_requests", "What children asked for, and were denied.", ("backend", "method"), asked)
    yield _counters("rpc_timeouts", "Calls that were not answered.", ("backend", "method"), unanswered)
    labels = ("backend", "method")
    yield _histograms("rpc_seconds", "How long a call to a child took to be answered.", labels, _merged(children))


def _merged(children: list[tuple[str, Supervisor]]) -> dict[Row, Histogram]:
    """How long calls took, by backend and method; the children of one backend together."""
    merged: dict[Row, Histogram] = {}
    for name, supervisor in children:
        for (method,), histogram in supervisor.counts.calls.items():
            merged.setdefault((name, method), Histogram(histogram.bounds)).add(histogram)
    return merged


def _bridge(sources: Sources) -> Iterator[Metric]:
    watchdog = sources.watchdog
    yield _gauges("info", "The program.", ("version",), {(__version__,): 1})
    yield _gauge("ready", "1 when /readyz says so.", int(sources.is_ready()))
    yield _histograms("loop_lag_seconds", "How late the event loop was.", (), {(): watchdog.lag})
    yield _counter("loop_stalls", "How often the event loop was blocked for more than a second.", watchdog.stalls)
    dropped = sources.log.writer.dropped if sources.log is not None else 0
    yield _counter("log_records_dropped", "Records of the event log that were lost.", dropped)
    removed = sum(redactor.removed for redactor in sources.redactors)
    yield _counter("redactions", "Secrets that were kept out of the event log and of stderr.", removed)


def _shared(shared: SharedLimits | None) -> Iterator[Metric]:
    if shared is not None:
        yield _gauge("shared_up", "1 while the server of PROXY_SHARED counts the limits.", int(shared.fault is None))
        yield _gauge("shared_bridges", "Bridges that share the limits.", shared.known)
        yield _counter("shared_failures", "Calls that the server did not answer.", shared.failures)


# Families of samples


def _counters(name: str, text: str, labels: Row, values: Mapping[Row, float]) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
    for row, value in values.items():
        family.add_metric(row, value)
    return family


def _counter(name: str, text: str, value: int) -> Metric:
    return _counters(name, text, (), {(): value})


def _gauges(name: str, text: str, labels: Row, values: Mapping[Row, float]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
    for row, value in values.items():
        family.add_metric(row, value)
    return family


def _gauge(name: str, text: str, value: int) -> Metric:
    return _gauges(name, text, (), {(): value})


def _histograms(name: str, text: str, labels: Row, values: Mapping[Row, Histogram]) -> Metric:
    family = HistogramMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
    for row, histogram in values.items():
        family.add_metric(row, *_buckets(histogram))
    return family


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """A histogram as Prometheus wants it: cumulated, the last bound infinite."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets, histogram.sum
