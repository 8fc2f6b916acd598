"""`codex-bridge cap`: the Coreason Agent Protocol, spoken, checked and described."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.errors import UsageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("run")
def run(
    model: Annotated[
        str | None, typer.Option(help="The model for requests that name none. [PROXY_CAP_MODEL; the default one]")
    ] = None,
    mock: Annotated[bool, typer.Option("--mock", help="Answer without a model, a login or a network.")] = False,
    mock_mode: Annotated[str | None, typer.Option(help="echo, text, tool-call or tool-loop. [echo]")] = None,
    url: Annotated[str | None, typer.Option(help="Ask a bridge that runs already, at this URL.")] = None,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Let --url be plain http to another machine.")
    ] = False,
    provider_key: Annotated[
        str | None, typer.Option(help="A key for this run: the provider's, or with --url the bridge's.")
    ] = None,
    native_tools: Annotated[
        bool, typer.Option("--native-tools", help="Leave Codex's own tools and prompts on (app-server).")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds that the whole run may take. [no limit but the turns']")
    ] = None,
    log_events: Annotated[
        str | None,
        typer.Option(metavar="DIR|FILE", help="Append everything that happens to this event log, as for exec."),
    ] = None,
    codex_bin: Annotated[str | None, typer.Option(help="As for serve. [CODEX_BIN]")] = None,
    codex_home: Annotated[str | None, typer.Option(help="As for serve. [CODEX_HOME]")] = None,
    config: Annotated[str | None, typer.Option(metavar="PATH", help="As for serve. [PROXY_CONFIG]")] = None,
) -> None:
    """Answer the requests on stdin with packets on stdout, one a line.

    stdin holds one ServiceRequest, or one a line: they are answered one after the other, and those with the same
    conversation_id continue it. What goes wrong with a request is told in its packets, and on stderr.

    Exit code 0: done. 1: a request failed. 2: something was typed wrong. 130: interrupted.
    """
    from bridge.cli.cap.options import Options
    from bridge.cli.cap.run import execute

    code = execute(
        Options(
            model=model,
            mock=mock,
            mock_mode=mock_mode,
            url=url,
            insecure_http=insecure_http,
            provider_key=provider_key,
            native_tools=native_tools,
            timeout=timeout,
            log_events=log_events,
            codex_bin=codex_bin,
            codex_home=codex_home,
            config=config,
        )
    )
    raise typer.Exit(code)


@app.command("validate")
def validate(
    model: Annotated[str, typer.Option(help="The model's name, as `cap schema` has it; for example StreamPacket.")],
) -> None:
    """Check the JSON on stdin. What is wrong with it is told on stderr, by its place.

    Exit code 0 when it is valid, 1 when it is not, 2 when there is no such model.
    """
    import re

    from pydantic import ValidationError

    from bridge.cli.cap.requests import MAX_INPUT
    from bridge.cli.streams import read_stdin, say

    adapter = _model(model)
    try:
        adapter.validate_json(read_stdin(MAX_INPUT))
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            place = ".".join(map(str, fault["loc"]))
            # A word, and not what Python calls it.
            what = re.sub(r"<\w+\.\w+: ('[^']*')>", r"\1", fault["msg"])
            say("invalid", f"{place}: {what}" if place else what)
        raise typer.Exit(1) from None


@app.command("schema")
def schema(
    model: Annotated[
        str | None, typer.Argument(help="The model's name; without it, all of them.", show_default=False)
    ] = None,
) -> None:
    """Print the JSON Schema of a model, or of all.

    All of them are one object, by name; each is complete in itself.
    """
    import orjson

    from bridge.api.cap.contract import MODELS, model_schema
    from bridge.cli.log.terminal import BROKEN_PIPE
    from bridge.cli.streams import StdoutClosed, write_stdout

    if model is not None:
        _model(model)
    found: Any = {name: model_schema(name) for name in sorted(MODELS)} if model is None else model_schema(model)
    try:
        write_stdout(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
    except StdoutClosed:
        raise typer.Exit(BROKEN_PIPE) from None


def _model(name: str) -> TypeAdapter[Any]:
    from bridge.api.cap.contract import MODELS

    if name not in MODELS:
        raise UsageError(f"There is no model {name[:80]!r}; there are {', '.join(sorted(MODELS))}.")
    return MODELS[name]
