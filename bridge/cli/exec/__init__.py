"""`turnbridge exec`: one run, its events on stdout (wire protocol v0, docs/exec-wire.md)."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import typer

from bridge.cli.flags import Flags, dataclass_flags

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a run in order."""

CONTEXT = {"allow_extra_args": True}
"""With more than one word, the error says to put the prompt into quotes."""

_prompt = partial(typer.Option, rich_help_panel="Prompt")
_tools = partial(typer.Option, rich_help_panel="Tools")
_backend = partial(typer.Option, rich_help_panel="Model and backend")
_output = partial(typer.Option, rich_help_panel="Output and logs")


@dataclass(frozen=True, slots=True)
class TypedFlags:
    """The flags as they were typed."""

    prompt: Annotated[str | None, _prompt("--prompt", "-p", metavar="TEXT", help="The same as PROMPT.")] = None
    instructions: Annotated[str | None, _prompt(metavar="TEXT", help="System prompt.")] = None
    system: Annotated[str | None, _prompt(metavar="TEXT", help="The same as --instructions.")] = None
    append_system_prompt: Annotated[
        str | None, _prompt(metavar="TEXT", help="Text to append to the system prompt, after a blank line.")
    ] = None
    input_json: Annotated[
        str | None,
        _prompt(metavar="PATH", help="JSON array of Responses input items, instead of PROMPT; - reads stdin."),
    ] = None

    model: Annotated[
        str | None,
        _backend(
            "--model", "-m", metavar="NAME", help="Model. [gpt-5.2-codex; with the app-server the model of CODEX_HOME]"
        ),
    ] = None
    effort: Annotated[
        str | None, _backend(metavar="[none|minimal|low|medium|high|xhigh]", help="Reasoning effort.")
    ] = None
    output_schema: Annotated[str | None, _backend(metavar="PATH", help="JSON Schema that the answer must follow.")] = (
        None
    )
    session_id: Annotated[
        str | None, _backend(metavar="ID", help="Session and prompt cache key. [a new one for each run]")
    ] = None
    backend: Annotated[
        str | None,
        _backend(
            metavar="NAME", help="app-server, codex (its login without Codex), anthropic, gemini, … [by model name]"
        ),
    ] = None
    url: Annotated[str | None, _backend(metavar="URL", help="Use the running bridge at this URL.")] = None
    insecure_http: Annotated[
        bool, _backend("--insecure-http", help="Allow --url to be plain http to another machine.")
    ] = False
    provider_key: Annotated[
        str | None, _backend(metavar="KEY", help="Key for this run: the provider's, or with --url the bridge's.")
    ] = field(default=None, repr=False)
    mock: Annotated[
        bool,
        _backend(
            "--mock", help="Answer without model, login or network: as --model mock-echo, which repeats the prompt."
        ),
    ] = False
    mock_mode: Annotated[
        str | None,
        _backend(
            metavar="[echo|text|tool-call|tool-loop]",
            help="With --mock, what to answer; echo returns the whole request as JSON.",
        ),
    ] = None
    native_tools: Annotated[
        bool, _backend("--native-tools", help="Run Codex as configured in CODEX_HOME, as in serve (app-server).")
    ] = False
    timeout: Annotated[
        float | None, _backend(min=0.001, metavar="SECONDS", help="Time for the whole run. [only the turn's limits]")
    ] = None
    codex_bin: Annotated[str | None, _backend(metavar="PATH", help="As in serve. [CODEX_BIN]")] = None
    codex_home: Annotated[str | None, _backend(metavar="DIR", help="As in serve. [CODEX_HOME]")] = None
    config: Annotated[str | None, _backend(metavar="FILE", help="As in serve. [PROXY_CONFIG]")] = None

    tool: Annotated[
        tuple[str, ...],
        _tools(metavar="SPEC", help="Function: NAME:json=PATH (its JSON Schema) or NAME:inline={…}. Repeatable."),
    ] = ()
    tool_choice: Annotated[str | None, _tools(metavar="CHOICE", help="auto, required or function:NAME. [auto]")] = None
    web_search: Annotated[bool, _tools("--web-search", help="Let the provider search the web.")] = False
    auto_tools: Annotated[
        bool, _tools("--auto-tools", help="Answer the model's calls with --tool-output, and continue.")
    ] = False
    tool_output: Annotated[
        tuple[str, ...],
        _tools(metavar="NAME=VALUE", help="Output of a tool; the value $args is the call's arguments. Repeatable."),
    ] = ()
    max_steps: Annotated[int, _tools(min=1, max=1000, metavar="N", help="Limit of model calls under --auto-tools.")] = 4

    json: Annotated[bool, _output("--json", help="Write events to stdout, one JSON object per line.")] = False
    trace: Annotated[
        bool, _output("--trace", help="Show the raw upstream events instead of the text; with --json on stderr.")
    ] = False
    log_requests: Annotated[
        str | None, _output(metavar="PATH", help="Write the payloads that are sent to this file, one per line.")
    ] = None
    log_responses: Annotated[
        str | None, _output(metavar="PATH", help="Append the events (the lines of --json) to this file.")
    ] = None
    log_events: Annotated[
        str | None,
        _output(
            metavar="DIR|FILE",
            help="Append all events to this event log, or to a new file in this directory (existing, or ending in /).",
        ),
    ] = None


@dataclass_flags(TypedFlags)
def command(
    context: typer.Context,
    flags: Flags,
    text: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="Text of the user; - reads it from stdin.")
    ] = None,
) -> None:
    """Run one prompt and print the answer or its events.

    \b
    turnbridge exec "Say hello"
    turnbridge exec --mock hello
    git diff | turnbridge exec --system "Write a commit message." -

    stdout contains only the answer, or with --json its events (docs/exec-wire.md); diagnostics go to stderr.

    Exit code 0: completed. 1: the run failed. 2: invalid command line or settings. 130: interrupted.
    """
    from bridge.cli.exec.options import Options
    from bridge.cli.exec.run import execute

    words = () if text is None else (text, *context.args)
    raise typer.Exit(execute(Options(**flags, words=words)))
