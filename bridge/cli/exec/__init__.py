"""`turnbridge exec`: one run, its events on stdout (wire protocol v0, docs/exec-wire.md)."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from bridge.cli.flags import Flags, dataclass_flags, flag

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a run in order."""

COMMAND_CONTEXT = {"allow_extra_args": True}
"""With more than one word, the error says to put the prompt into quotes."""

_prompt = partial(flag, "Prompt")
model_flag = partial(flag, "Model and backend")
_tools = partial(flag, "Tools")
_output = partial(flag, "Output and logs")


@dataclass(frozen=True, slots=True)
class TypedFlags:
    """The flags as they were typed."""

    prompt: str | None = _prompt("The same as PROMPT.", "--prompt", "-p", metavar="TEXT")
    instructions: str | None = _prompt("System prompt.", metavar="TEXT")
    system: str | None = _prompt("The same as --instructions.", metavar="TEXT")
    append_system_prompt: str | None = _prompt(
        "Text to append to the system prompt, after a blank line.", metavar="TEXT"
    )
    input_json: str | None = _prompt(
        "JSON array of Responses input items, instead of PROMPT; - reads stdin.", metavar="PATH"
    )

    model: str | None = model_flag(
        "Model. [gpt-5.2-codex; with the app-server the model of CODEX_HOME]", "--model", "-m", metavar="NAME"
    )
    effort: str | None = model_flag("Reasoning effort.", metavar="[none|minimal|low|medium|high|xhigh]")
    output_schema: str | None = model_flag("JSON Schema that the answer must follow.", metavar="PATH")
    session_id: str | None = model_flag("Session and prompt cache key. [a new one for each run]", metavar="ID")
    backend: str | None = model_flag(
        "app-server, codex (its login without Codex), anthropic, gemini, … [by model name]", metavar="NAME"
    )
    url: str | None = model_flag("Use the running bridge at this URL.", metavar="URL")
    insecure_http: bool = model_flag("Allow --url to be plain http to another machine.", default=False)
    provider_key: str | None = model_flag(
        "Key for this run: the provider's, or with --url the bridge's.", metavar="KEY", secret=True
    )
    mock: bool = model_flag(
        "Answer without model, login or network: as --model mock-echo, which repeats the prompt.", default=False
    )
    mock_mode: str | None = model_flag(
        "With --mock, what to answer; echo returns the whole request as JSON.",
        metavar="[echo|text|tool-call|tool-loop]",
    )
    native_tools: bool = model_flag("Run Codex as configured in CODEX_HOME, as in serve (app-server).", default=False)
    timeout: float | None = model_flag("Time for the whole run. [only the turn's limits]", metavar="SECONDS", min=0.001)
    codex_bin: str | None = model_flag("As in serve. [CODEX_BIN]", metavar="PATH")
    codex_home: str | None = model_flag("As in serve. [CODEX_HOME]", metavar="DIR")
    config: str | None = model_flag("As in serve. [PROXY_CONFIG]", metavar="FILE")

    tool: tuple[str, ...] = _tools(
        "Function: NAME:json=PATH (its JSON Schema) or NAME:inline={…}. Repeatable.", metavar="SPEC", default=()
    )
    tool_choice: str | None = _tools("auto, required or function:NAME. [auto]", metavar="CHOICE")
    web_search: bool = _tools("Let the provider search the web.", default=False)
    auto_tools: bool = _tools("Answer the model's calls with --tool-output, and continue.", default=False)
    tool_output: tuple[str, ...] = _tools(
        "Output of a tool; the value $args is the call's arguments. Repeatable.", metavar="NAME=VALUE", default=()
    )
    max_steps: int = _tools("Limit of model calls under --auto-tools.", metavar="N", default=4, min=1, max=1000)

    json: bool = _output("Write events to stdout, one JSON object per line.", default=False)
    trace: bool = _output("Show the raw upstream events instead of the text; with --json on stderr.", default=False)
    log_requests: str | None = _output("Write the payloads that are sent to this file, one per line.", metavar="PATH")
    log_responses: str | None = _output("Append the events (the lines of --json) to this file.", metavar="PATH")
    log_events: str | None = _output(
        "Append all events to this event log, or to a new file in this directory (existing, or ending in /).",
        metavar="DIR|FILE",
    )


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
