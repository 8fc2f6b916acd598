"""`codex-bridge serve`: the proxy."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [PROXY_HOST; 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 picks a free one. [PORT; 11435]")] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Key that clients must send; may be given several times. [PROXY_API_KEY; one is made]"),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Serve https: the certificate and its chain, as PEM. Needs --tls-key. [PROXY_TLS_CERT]"
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The private key of --tls-cert, as PEM. [PROXY_TLS_KEY]")
    ] = None,
    codex_bin: Annotated[
        str | None,
        typer.Option(help="Codex, or any program that speaks its protocol. [CODEX_BIN; codex on PATH]"),
    ] = None,
    codex_home: Annotated[
        Path | None,
        typer.Option(help="Codex's directory with login and configuration. [CODEX_HOME; ~/.codex]"),
    ] = None,
    mock_only: Annotated[
        bool | None,
        typer.Option("--mock-only", help="Serve the mock models alone; no Codex is started. [PROXY_MOCK_ONLY]"),
    ] = None,
    dialect: Annotated[
        str | None,
        typer.Option(help="auto, current or legacy: how to speak to the child. [PROXY_DIALECT; auto]"),
    ] = None,
    tool_mode: Annotated[
        str | None,
        typer.Option(help="auto (which is text), text or native: how tools are offered. [PROXY_TOOL_MODE; auto]"),
    ] = None,
    web_search: Annotated[
        str | None,
        typer.Option(help="off, cached or live: the web search that clients may ask for. [PROXY_WEB_SEARCH; off]"),
    ] = None,
    reasoning: Annotated[
        str | None,
        typer.Option(help="content, think or hidden: where chat shows a model's thoughts. [PROXY_REASONING; content]"),
    ] = None,
    list_models: Annotated[
        str | None,
        typer.Option(help="all or models: whether GET /v1/models has aliases and efforts. [PROXY_LIST_MODELS; all]"),
    ] = None,
    unsupported: Annotated[
        str | None,
        typer.Option(help="drop or reject: parameters that Codex has no place for. [PROXY_UNSUPPORTED; drop]"),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="sqlite, memory or off: where responses are kept. [PROXY_STORE; sqlite]"),
    ] = None,
    native_tools: Annotated[
        bool | None,
        typer.Option(
            "--native-tools",
            help="Run Codex as it is set up: its own tools and prompts, and the AGENTS.md, memories, skills, MCP "
            "servers, hooks and notify of CODEX_HOME, for every client's request. [PROXY_NATIVE_TOOLS]",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Children to run. Several on one ChatGPT login can race for its refresh token. [PROXY_WORKERS; 1]"
        ),
    ] = None,
    log_events: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|FILE",
            help="Append every proto-event to this NDJSON file, or to a new one in this directory "
            "(one that exists, or ends in /). [PROXY_LOG_EVENTS]",
        ),
    ] = None,
    log_max_bytes: Annotated[
        int | None,
        typer.Option(
            help="Begin a new file when one has this size; a FILE is renamed to FILE-TIME then. 0: never. "
            "[PROXY_LOG_MAX_BYTES; 0, in a DIR 268435456]"
        ),
    ] = None,
    log_max_age: Annotated[
        float | None,
        typer.Option(help="The same after so many seconds. 0: never. [PROXY_LOG_MAX_AGE; 0]"),
    ] = None,
    log_keep: Annotated[
        int | None,
        typer.Option(help="Keep so many files of the log and delete older ones. 0: keep all. [PROXY_LOG_KEEP; 0]"),
    ] = None,
    log_on_error: Annotated[
        str | None,
        typer.Option(
            help="drop or stop: when the log cannot be written, go on without it, or end with exit code 1. "
            "[PROXY_LOG_ON_ERROR; drop]"
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG", help="Answer from the recordings in this event log; no Codex is asked. [PROXY_REPLAY]"
        ),
    ] = None,
    on_miss: Annotated[
        str | None,
        typer.Option(
            help="error, nearest or forward: what a request gets that is not in the log: a 404 that tells what "
            "differs, the recording that is nearest, or a live answer. [PROXY_ON_MISS; error]"
        ),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            help="How fast recorded answers come: 1 as then, 2 twice as fast, 0 at once. [PROXY_REPLAY_SPEED; 0]"
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="A member of requests that may differ from the recorded one, such as instructions or input.*.id; "
            "may be given several times. [PROXY_REPLAY_IGNORE]",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Backends, routing and settings as TOML, as in docs/config.toml. [PROXY_CONFIG]"),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(help="console or json: what the lines on stderr look like. [PROXY_LOG_FORMAT; console]"),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say more on stderr, and each request. [PROXY_LOG_LEVEL=debug]")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check the flags, the variables and the configuration file, and exit.")
    ] = False,
) -> None:
    """Serve the OpenAI API in front of a Codex app-server.

    Both /v1/responses and /v1/chat/completions are served, and /v1/models.

    Every setting can also be given in the environment, under the name in brackets. Stop with Ctrl-C: running turns get
    20 seconds to finish, a second Ctrl-C stops at once.
    """
    from bridge.config import unknown_variables
    from bridge.config_file import load_configuration
    from bridge.errors import UsageError
    from bridge.logs import set_up

    flags: dict[str, Any] = {
        "host": host,
        "port": port,
        "api_keys": tuple(api_key) if api_key else None,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "codex_bin": codex_bin,
        "codex_home": codex_home,
        "mock_only": mock_only,
        "dialect": dialect,
        "tool_mode": tool_mode,
        "web_search": web_search,
        "reasoning": reasoning,
        "list_models": list_models,
        "unsupported": unsupported,
        "store": store,
        "native_tools": native_tools,
        "workers": workers,
        "log_events": log_events,
        "log_max_bytes": log_max_bytes,
        "log_max_age": log_max_age,
        "log_keep": log_keep,
        "log_on_error": log_on_error,
        "replay": replay,
        "on_miss": on_miss,
        "speed": speed,
        "ignore": tuple(ignore) if ignore else None,
        "config": config,
        "log_format": log_format,
        "log_level": "debug" if verbose else None,
    }
    settings, file = load_configuration(**flags)
    if settings.replay is None:
        for name, given in (("--on-miss", on_miss), ("--speed", speed), ("--ignore", ignore or None)):
            if given is not None:
                raise UsageError(f"{name} goes with --replay.")
    log = logging.getLogger("bridge")
    said = set_up(settings.log_format, settings.log_level, settings.api_keys)
    for name in unknown_variables():
        log.warning("%s is not a setting; it is ignored", name)
    if check:
        return

    import gc

    import trio

    from bridge.cli.streams import say
    from bridge.protolog.event_log import LogFailed
    from bridge.server.run import serve

    # What has been imported stays; looking through it again and again would be a tenth of the work per delta. What dies
    # old, as connections do, is found after some two million more objects.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    try:
        trio.run(serve, settings, file, announce, said)
    except LogFailed as error:
        say("error", f"{error.message} With --log-on-error drop the bridge goes on.")
        raise typer.Exit(1) from None


def announce(line: str) -> None:
    """A line on stdout. Whoever started us may have stopped reading (`| head -1`): that is no reason to end."""
    try:
        typer.echo(line)
    except BrokenPipeError:
        # What is left in the buffer would be complained about at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
