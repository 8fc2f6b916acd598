"""`codex-bridge log verify`: would clients get the same today? The same as `replay --verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.log.options import LogPath, filtered

if TYPE_CHECKING:
    from bridge.protolog.filters import Filters


@filtered
def command(
    log: LogPath,
    filters: Filters,
    update: Annotated[
        bool, typer.Option("--update", help="Put what they get now into the log, in place of what they got.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Tell of every request.")] = False,
) -> None:
    """Answer every recorded request again from what its backend said, and compare with what its client got.

    Exit code 1 where a byte differs. It is what `replay --verify` does.
    """
    from bridge.cli.log.options import open_log, tell_trouble
    from bridge.cli.log.terminal import printing
    from bridge.cli.replay import keep_quiet, run_verify

    keep_quiet()
    with printing() as screen:
        opened = open_log(log, screen, no_index=True)
        code = run_verify(opened, filters, screen, update=update, verbose=verbose)
        tell_trouble(opened.trouble, screen)
    raise typer.Exit(code)
