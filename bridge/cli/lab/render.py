"""`codex-bridge lab render`: the exact text that is injected."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.lab.options import Cases, Categories, SuitePath, Tags, choose_cases


def command(
    suite: SuitePath,
    variant: Annotated[str, typer.Option("--variant", "-V", help="A shipped variant, or a .yaml file.")] = "spec",
    case: Cases = None,
    category: Categories = None,
    tag: Tags = None,
) -> None:
    """Print the text that a variant injects for the tools of a case, byte for byte; its size goes to stderr.

    Of several cases each distinct text is printed once, with a newline behind it, as on a terminal.
    """
    import os

    from bridge.cli.log.terminal import BROKEN_PIPE
    from bridge.cli.streams import STDOUT, StdoutClosed, say, write_stdout
    from bridge.lab.variant_file import find_variant
    from bridge.turn.estimate import estimate_text

    chosen, found = choose_cases(suite, case, category, tag), find_variant(variant)
    texts: dict[str, list[str]] = {}
    for each in chosen:
        texts.setdefault(found.text_for(each), []).append(each.id)
    end = "\n" if len(texts) > 1 or os.isatty(STDOUT) else ""
    for text, ids in texts.items():
        shown = ", ".join(ids[:4]) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")
        say("note", f"{found.name} for {shown}: {len(text):,} characters, about {estimate_text(text):,} tokens")
        try:
            write_stdout((text + end if text else "").encode("utf-8", "backslashreplace"))
        except StdoutClosed:
            raise typer.Exit(BROKEN_PIPE) from None
