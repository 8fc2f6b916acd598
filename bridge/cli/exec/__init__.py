"""`codex-bridge exec`: one run, its events on stdout (wire protocol v0, docs/exec-wire.md)."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a run in order."""


CONTEXT = {"allow_extra_args": True}
"""More words than one are told to be put into quotes, not only to be unexpected."""


def command(
    context: typer.Context,
    text: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="What the user says; - reads it from stdin.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="The same as PROMPT, as a flag.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="The model. [gpt-5.2-codex; with the app-server the one that CODEX_HOME names]",
        ),
    ] = None,
    instructions: Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.")] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The same as --instructions.")] = None,
    append_system_prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Follows the system prompt, after a blank line.")
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="A function: NAME:json=PATH (its JSON Schema) or NAME:inline={…}. May be repeated.",
        ),
    ] = None,
    web_search: Annotated[bool, typer.Option("--web-search", help="Let the provider search the web.")] = False,
    tool_choice: Annotated[
        str | None, typer.Option(metavar="CHOICE", help="auto, required or function:NAME. [auto]")
    ] = None,
    input_json: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="A JSON array of Responses input items, in place of PROMPT; - is stdin."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write events to stdout, one JSON object a line.")] = False,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Show the raw upstream events, in place of the text; with --json on stderr."),
    ] = False,
    log_requests: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write the payloads that are sent to this file, one a line.")
    ] = None,
    log_responses: Annotated[
        str | None, typer.Option(metavar="PATH", help="Append the events (the lines of --json) to this file.")
    ] = None,
    log_events: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|FILE",
            help="Append everything that happens to this event log, or to a new one in this directory "
            "(one that exists, or ends in /).",
        ),
    ] = None,
    session_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The session and prompt cache key. [a new one for each run]")
    ] = None,
    effort: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Reasoning effort: none, minimal, low, medium, high, xhigh.")
    ] = None,
    output_schema: Annotated[
        str | None, typer.Option(metavar="PATH", help="A JSON Schema that the answer is to follow.")
    ] = None,
    auto_tools: Annotated[
        bool, typer.Option("--auto-tools", help="Answer the model's calls with --tool-output, and go on.")
    ] = False,
    tool_output: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="What a tool gives back; the value $args is the call's arguments."),
    ] = None,
    max_steps: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Model calls under --auto-tools.")] = 4,
    mock: Annotated[
        bool,
        typer.Option(
            "--mock",
            help="Answer without a model, a login or a network: the same as --model mock-echo, which repeats "
            "the prompt.",
        ),
    ] = False,
    mock_mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="With --mock: echo (answers with the whole request as JSON), text, tool-call or tool-loop.",
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="app-server, codex (its login alone), anthropic, gemini, … [by the model's name]"
        ),
    ] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="Ask a bridge that runs already, at this URL.")] = None,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Let --url be plain http to another machine.")
    ] = False,
    provider_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="A key for this run: the provider's, or with --url the bridge's.")
    ] = None,
    native_tools: Annotated[
        bool, typer.Option("--native-tools", help="Run Codex as it is set up, as for serve (app-server).")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="SECONDS", help="How long the whole run may take. [no limit but the turn's]"),
    ] = None,
    codex_bin: Annotated[str | None, typer.Option(metavar="PATH", help="As for serve. [CODEX_BIN]")] = None,
    codex_home: Annotated[str | None, typer.Option(metavar="PATH", help="As for serve. [CODEX_HOME]")] = None,
    config: Annotated[str | None, typer.Option(metavar="PATH", help="As for serve. [PROXY_CONFIG]")] = None,
) -> None:
    """Run one prompt and write the answer, or with --json its events.

    \b
    codex-bridge exec "Say hello"
    codex-bridge exec --mock hello
    git diff | codex-bridge exec --system "Write a commit message." -

    stdout holds nothing but the answer; diagnostics go to stderr. The events are described in docs/exec-wire.md.

    Exit code 0: done. 1: the run failed. 2: something was typed wrong. 130: interrupted.
    """
    from bridge.cli.exec.options import Options
    from bridge.cli.exec.run import execute

    code = execute(
        Options(
            words=() if text is None else (text, *context.args),
            prompt=prompt,
            model=model,
            instructions=instructions,
            system=system,
            append_system_prompt=append_system_prompt,
            tool=tuple(tool or ()),
            web_search=web_search,
            tool_choice=tool_choice,
            input_json=input_json,
            json=json,
            trace=trace,
            log_requests=log_requests,
            log_responses=log_responses,
            log_events=log_events,
            session_id=session_id,
            effort=effort,
            output_schema=output_schema,
            auto_tools=auto_tools,
            tool_output=tuple(tool_output or ()),
            max_steps=max_steps,
            mock=mock,
            mock_mode=mock_mode,
            backend=backend,
            url=url,
            insecure_http=insecure_http,
            provider_key=provider_key,
            native_tools=native_tools,
            timeout=timeout,
            codex_bin=codex_bin,
            codex_home=codex_home,
            config=config,
        )
    )
    raise typer.Exit(code)
