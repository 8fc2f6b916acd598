"""`codex-bridge lab cases`: what a suite asks; whether it is right."""

from __future__ import annotations

from bridge.cli.lab.options import Cases, Categories, SuitePath, Tags, choose_cases


def command(suite: SuitePath, case: Cases = None, category: Categories = None, tag: Tags = None) -> None:
    """Check a suite, and list its cases: category, id, tools, what is due. Nobody is asked."""
    from bridge.cli.log.terminal import fit, one_line, printing

    chosen = choose_cases(suite, case, category, tag)
    with printing() as screen:
        for each in chosen:
            due = ", ".join(call.name for call in each.expect.calls) or "no call"
            tools = f"{len(each.tools)} tool{'' if len(each.tools) == 1 else 's'}"
            line = f"{fit(each.category, 20)} {fit(each.id, 32)} {fit(tools, 8)} {one_line(due)}"
            screen.line(fit(line, screen.width).rstrip() if screen.on_terminal else line)
        screen.line(f"{len(chosen)} case(s) in {len({each.category for each in chosen})} categories")
