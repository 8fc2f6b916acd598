"""`turnbridge cap`: answer CAP requests, validate messages, print schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.cli.exec import TypedFlags, model_flag
from bridge.cli.flags import Flags, dataclass_flags, same_flag
from bridge.errors import UsageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_INPUT = 64 * 1024 * 1024
"""Bytes of a message on stdin."""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class RunFlags:
    """The flags of `cap run` as they were typed."""

    model: str | None = model_flag("Model for requests that name none. [PROXY_CAP_MODEL, or the default model]")
    mock: bool = model_flag("Answer without a model, a login or a network.", default=False)
    mock_mode: str | None = model_flag("echo, text, tool-call or tool-loop. [echo]")
    url: str | None = same_flag(TypedFlags, "url")
    insecure_http: bool = same_flag(TypedFlags, "insecure_http")
    provider_key: str | None = same_flag(TypedFlags, "provider_key")
    native_tools: bool = same_flag(TypedFlags, "native_tools")
    timeout: float | None = same_flag(TypedFlags, "timeout")
    codex_bin: str | None = same_flag(TypedFlags, "codex_bin")
    codex_home: str | None = same_flag(TypedFlags, "codex_home")
    config: str | None = same_flag(TypedFlags, "config")
    log_events: str | None = same_flag(TypedFlags, "log_events")


@app.command("run")
@dataclass_flags(RunFlags)
def run(flags: Flags) -> None:
    """Answer the requests on stdin with packets on stdout, one per line.

    stdin holds one ServiceRequest, or one per line. They are answered in order, and requests with the same
    conversation_id continue that conversation. Errors are reported in the packets and on stderr.

    Exit code 0: done. 1: a request failed. 2: invalid usage. 130: interrupted.
    """
    from bridge.cap.commands.run import Options, execute

    raise typer.Exit(execute(Options(**flags)))


@app.command("validate")
def validate(
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the model, for example StreamPacket; `cap schema` lists all.")
    ],
) -> None:
    """Validate the JSON on stdin. Faults are printed on stderr with their location.

    Exit code 0: valid. 1: invalid. 2: unknown model.
    """
    from pydantic import ValidationError

    from bridge.terminal import read_stdin, say

    adapter = _model(model)
    try:
        adapter.validate_json(read_stdin(MAX_INPUT))
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            where = ".".join(map(str, fault["loc"]))
            say("invalid", f"{where}: {fault['msg']}" if where else fault["msg"])
        raise typer.Exit(1) from None


@app.command("schema")
def schema(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Name of the model. Without it, all models.", show_default=False),
    ] = None,
) -> None:
    """Print the JSON Schema of a model, or one object with the schemas of all models by name."""
    import orjson

    from bridge.protocols.cap.stream import MODELS, model_schema
    from bridge.terminal import BROKEN_PIPE, StdoutClosed, write_stdout

    if model is not None:
        _model(model)
    found: Any = {name: model_schema(name) for name in sorted(MODELS)} if model is None else model_schema(model)
    try:
        write_stdout(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
    except StdoutClosed:
        raise typer.Exit(BROKEN_PIPE) from None


def _model(name: str) -> TypeAdapter[Any]:
    from bridge.protocols.cap.stream import MODELS

    if name not in MODELS:
        raise UsageError(f"Unknown model {name[:80]!r}. Choose one of {', '.join(sorted(MODELS))}.")
    return MODELS[name]
