"""`codex-bridge app-server`: the built-in stand-in for Codex, or a recorded child, over stdin and stdout."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    mode: Annotated[
        str,
        typer.Option(help="What to answer: echo, text, tool-call or tool-loop. A mock-* model overrides it."),
    ] = "echo",
    script: Annotated[
        Path | None,
        typer.Option(help="A JSON script of turns and faults to perform instead (see docs/standin.md)."),
    ] = None,
    dialect: Annotated[str, typer.Option(help="Methods to offer: both, current or legacy.")] = "both",
    replay: Annotated[
        Path | None,
        typer.Option(help="Play the child of this event log (a file, a directory, or a JSON-RPC transcript) instead."),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="With --replay: 0 as fast as possible, 1 as recorded, N so many times as fast.")
    ] = 0.0,
    on_miss: Annotated[
        str,
        typer.Option(
            help="With --replay, what a turn that is not in the log gets: error, or nearest (the most similar)."
        ),
    ] = "error",
    config: Annotated[
        list[str] | None, typer.Option("-c", "--config", help="Taken and ignored, as Codex's overrides are.")
    ] = None,
) -> None:
    """Play a Codex app-server, without a Codex or an account.

    It speaks the protocol (JSON-RPC, one message a line) over stdin and stdout, and plays the mock models of `serve`
    and the child in tests. Point CODEX_BIN at a program that runs this to use it in Codex's place.
    """
    from bridge.appserver.standin.script import MODES, parse_script
    from bridge.errors import ConfigError

    if mode not in MODES:
        raise ConfigError(f"--mode {mode}: choose one of {', '.join(MODES)}")
    if dialect not in ("both", "current", "legacy"):
        raise ConfigError(f"--dialect {dialect}: choose both, current or legacy")
    if replay is not None:
        if script is not None:
            raise ConfigError("--replay and --script: choose one of them")
        _replay(replay, speed, on_miss)
        return
    try:
        parsed = parse_script(script.read_bytes()) if script else None
    except OSError as error:
        raise ConfigError(f"--script {script}: {error.strerror}") from error

    import trio

    from bridge.appserver.standin.server import Standin, StandinDialect

    async def run() -> None:
        spoken: Any = dialect
        wanted: StandinDialect = spoken
        await Standin(mode=mode, dialect=wanted, script=parsed).run()

    trio.run(run)


def _replay(path: Path, speed: float, on_miss: str) -> None:
    from bridge.errors import ConfigError

    if not (speed >= 0 and math.isfinite(speed)):
        raise ConfigError(f"--speed {speed:g}: 0, or how many times as fast as recorded")
    if on_miss not in ("error", "nearest"):
        raise ConfigError(f"--on-miss {on_miss}: choose error or nearest")

    from bridge.cli.streams import say
    from bridge.protolog.child_side import read_child
    from bridge.protolog.read import RecordReader, played_files

    reader = RecordReader(played_files(path))
    child = read_child(reader)
    for sentence in reader.trouble.sentences():
        say("warning", sentence)
    if not child.tapes:
        raise ConfigError(f"{path} holds no turn of an app-server: there is nothing to play.")

    import trio

    from bridge.appserver.standin.playback import OnMiss, Playback

    async def run() -> None:
        chosen: Any = on_miss
        wanted: OnMiss = chosen
        await Playback(child, speed=speed, on_miss=wanted).run()

    trio.run(run)
