"""One history: the whole bridge, its children and its clients in one event loop, from the start to the last reply."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import machine
import trio
from child import Process
from choices import Choices
from clients import Seen, ask_for, connect
from model import SLACK, Auditor, judge, judge_children, judge_log, judge_slots
from plans import FIRST_EVENT, GRACE, IDLE, QUEUE, RPC, ClientPlan, Plan, habits_of, make_plan

from bridge.app.app import App
from bridge.appserver import process as processes
from bridge.appserver import supervisor as supervisors
from bridge.errors import NotReady
from bridge.server import run as server
from bridge.server.process import Stop
from bridge.settings import Settings
from bridge.store.key_store import KeyFile
from bridge.telemetry import Watchdog

OPERATORS_KEY = "simulated-key-0123456789abcdef"
LONGEST = 200.0
"""Seconds after which a history must be over."""

BASE = Settings(
    mock_only=True,
    store="memory",
    api_keys=(OPERATORS_KEY,),
    first_event_timeout=FIRST_EVENT,
    idle_timeout=IDLE,
    rpc_timeout=RPC,
    turn_timeout=60,
    queue_timeout=QUEUE,
    write_timeout=10,
    keepalive=3,
    grace=GRACE,
    cap_grace=0,
    # With both calls, a short turn of the stand-in ends before the second call, which is then another prompt.
    legacy_calls="turn",
)


@dataclass
class World:
    """What happens in a history, as the simulator knows it."""

    choices: Choices
    plan: Plan
    machine: machine.Machine
    directory: Path
    children: list[Process] = field(default_factory=list)
    failed_starts: list[float] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    stopped: float | None = None
    over: float | None = None
    """When the bridge began to stop, for whatever reason."""
    nursery: trio.Nursery | None = None

    def note(self, text: str) -> None:
        """Something happened."""
        self.events.append((round(trio.current_time(), 4), text))

    def violate(self, text: str) -> None:
        """A promise was broken."""
        self.violations.append(text)
        self.note(f"VIOLATION: {text}")


class QuietWatchdog(Watchdog):
    """Measures nothing: it compares with a clock that stands still here."""

    async def run(self) -> None:
        await trio.sleep_forever()


class Door(socket.socket):
    """A listening socket without a network: connections are made in the kernel's memory, at once."""

    small_buffers = False

    def setsockopt(self, level: int, option: int, *value: Any) -> None:
        if level != socket.IPPROTO_TCP:
            super().setsockopt(level, option, *value)

    def accept(self) -> tuple[socket.socket, Any]:
        connected, address = super().accept()
        if self.small_buffers:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
        return connected, address


@dataclass(frozen=True)
class History:
    """A history that is over."""

    seed: int
    violations: tuple[str, ...]
    events: tuple[tuple[float, str], ...]
    taken: dict[str, object]
    digest: str
    outcomes: tuple[str, ...]

    @property
    def shape(self) -> str:
        """The same for histories in which the same happened, whenever."""
        return sha256(repr([text for _, text in self.events]).encode()).hexdigest()[:16]


def run_history(seed: int, kept: frozenset[str] | None = None) -> History:
    """Run the history of a seed. With `kept`, all other decisions have their default."""
    choices = Choices(seed, kept)
    world = World(
        choices, make_plan(choices), machine.Machine(choices), Path(tempfile.mkdtemp(dir=_memory(), prefix="sim-"))
    )
    try:
        with children_in_memory(world):
            world.machine.run(lambda: _live(world))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        world.violations.append(f"the bridge ended with {error!r}: {_innermost(error)}")
    finally:
        shutil.rmtree(world.directory, ignore_errors=True)
    for text in world.machine.errors:
        if world.plan.disk_full is None or not text.startswith("bridge.log: "):
            world.violations.append(f"the bridge logged an error: {text}".replace(str(world.directory), "DIRECTORY"))
    about = [(each.mark, each.status, each.outcome, each.ended, each.left, each.data) for each in world.seen]
    digest = sha256(repr((world.events, about, world.violations)).encode()).hexdigest()[:16]
    return History(
        seed,
        tuple(world.violations),
        tuple(world.events),
        dict(choices.taken),
        digest,
        tuple(each.outcome or "left" for each in world.seen),
    )


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    where, line = "", 0
    trace = error.__traceback__
    while trace is not None:
        where, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return f"{error!r} in {Path(where).name}:{line}"


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@contextmanager
def children_in_memory(world: World) -> Iterator[None]:
    """Let supervisors start children in memory."""

    async def spawn(argv: Any, *, env: Any, cwd: str | None = None) -> Process:
        await trio.lowlevel.checkpoint()
        number = len(world.children) + len(world.failed_starts)
        habits = habits_of(world.choices, number)
        if habits.fails_to_start:
            world.failed_starts.append(trio.current_time())
            world.note("a child cannot be started")
            raise NotReady("The simulation allows no child.", code="backend_start_failed")
        process = Process(number, habits, world.plan.dialect, world.choices, world.note)
        world.children.append(process)
        assert world.nursery is not None
        world.nursery.start_soon(process.live, lambda mark: world.plan.marks[mark].steps)
        return process

    def send_signal(process: Process, number: int) -> None:
        process.signal(number)

    async def sleep() -> None:
        await trio.sleep_forever()

    names: dict[Any, dict[str, Any]] = {
        supervisors: {"spawn": spawn},
        processes: {"signal_group": send_signal},
        server: {"tidy_up": sleep},
    }
    before = {module: {name: vars(module)[name] for name in new} for module, new in names.items()}
    for module, new in names.items():
        vars(module).update(new)
    try:
        yield
    finally:
        for module, old in before.items():
            vars(module).update(old)


async def _live(world: World) -> None:
    plan = world.plan
    keys = Keys(world.directory / "keys.json", plan)
    settings = BASE.model_copy(
        update=plan.settings | {"log_events": str(world.directory / "log.ndjson") if plan.logs else None}
    )
    app = App(settings, keys=settings.api_keys, key_store=KeyFile(keys.path))
    app.watchdog = QuietWatchdog()
    bridge, stop = server.Server(app), Stop()
    with Door(socket.AF_UNIX) as door:
        door.small_buffers = plan.small_buffers
        door.bind("")
        door.listen(64)
        door.setblocking(False)
        auditor = Auditor(world, app)
        with trio.move_on_after(LONGEST) as limit:
            async with trio.open_nursery() as nursery:
                world.nursery = nursery
                await nursery.start(bridge.run, [door], stop)
                async with trio.open_nursery() as clients:
                    for client in plan.clients:
                        clients.start_soon(_run_client, world, client, door.getsockname(), keys, auditor)
                    clients.start_soon(keys.revoke_in_time)
                    if plan.stop_at is not None:
                        clients.start_soon(_stop_at, world, plan.stop_at, stop)
                    if plan.disk_full is not None:
                        clients.start_soon(_fill_disk, world, *plan.disk_full)
                await auditor.at_rest()
                world.over = world.over if world.over is not None else trio.current_time()
                stop.asked.set()
                while any(child.is_alive for child in world.children):
                    await trio.sleep(0.5)
        if limit.cancelled_caught:
            world.violate(f"the history is not over after {LONGEST:g} s: {auditor.state()}")
    judge(world)
    judge_children(world)
    judge_slots(world)
    if plan.logs and plan.disk_full is None:
        judge_log(world, world.directory / "log.ndjson")


async def _run_client(world: World, client: ClientPlan, address: Any, keys: Keys, auditor: Auditor) -> None:
    await trio.sleep(client.at)
    stream: trio.SocketStream | None = None
    before: Seen | None = None
    for ask in client.asks:
        seen = Seen(ask, client.key, trio.current_time())
        world.seen.append(seen)
        world.note(f"{ask.mark} is asked: {ask.protocol}{', streamed' if ask.stream else ''}, {ask.manner}")
        try:
            if stream is None:
                stream = connect(address)
                if world.stopped is not None and trio.current_time() > world.stopped + SLACK:
                    world.violate(f"{ask.mark}: a connection was accepted after the stop")
        except OSError:
            seen.ended, seen.outcome = trio.current_time(), "refused"
            world.note(f"{ask.mark} is refused a connection")
            continue
        goes_on = False
        try:
            goes_on = await ask_for(stream, seen, keys.keys[client.key], before)
        finally:
            world.note(f"{ask.mark} has left" if seen.left is not None else f"{ask.mark} hears {seen.outcome}")
            assert world.nursery is not None
            world.nursery.start_soon(auditor.check_after, seen)
            if not goes_on:
                stream.socket.close()
                stream = None
        if seen.left is not None:
            return
        before = seen
    if stream is not None:
        stream.socket.close()


async def _stop_at(world: World, at: float, stop: Stop) -> None:
    await trio.sleep(at)
    world.stopped = world.over = trio.current_time()
    world.note("the bridge is asked to stop")
    stop.asked.set()


async def _fill_disk(world: World, start: float, end: float) -> None:
    """No file can grow for a while. The kernel enforces it, so every write meets it."""
    await trio.sleep(start)
    world.note("the disk is full")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    try:
        await trio.sleep(end - start)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        world.note("the disk has room again")


class Keys:
    """The key store: the operator's key has number 0, the others follow."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self.keys = [OPERATORS_KEY, *(f"cb-simulated-{number}" for number in range(len(plan.keys)))]
        self._plan = plan
        self._gone: set[int] = set()
        self._write(path)
        # The versions that follow are written now: the disk may be full by then.
        for number, _ in self._revoked():
            self._gone.add(number)
            self._write(path.with_suffix(f".{number}"))

    def _revoked(self) -> list[tuple[int, float]]:
        ends = [(number, key.revoked) for number, key in enumerate(self._plan.keys) if key.revoked is not None]
        return sorted(ends, key=lambda each: each[1])

    def _write(self, path: Path) -> None:
        found = []
        for number, key in enumerate(self._plan.keys):
            if number in self._gone:
                continue
            entry: dict[str, Any] = {
                "name": f"client{number}",
                "sha256": sha256(self.keys[number + 1].encode()).hexdigest(),
                "created": datetime.fromtimestamp(machine.EPOCH, UTC).isoformat(),
            }
            if key.expires is not None:
                entry["expires"] = datetime.fromtimestamp(machine.EPOCH + key.expires, UTC).isoformat()
            if key.max_turns is not None:
                entry["max_turns"] = key.max_turns
            found.append(entry)
        path.write_text(json.dumps({"version": 1, "keys": found}))

    async def revoke_in_time(self) -> None:
        """Remove each key when its time has come."""
        for number, at in self._revoked():
            await trio.sleep_until(at)
            self.path.with_suffix(f".{number}").replace(self.path)
