"""`codex-bridge app-server`: the built-in stand-in for Codex, over stdin and stdout."""

from __future__ import annotations

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
