"""`codex-bridge cap`: messages of the Coreason Agent Protocol, checked and described."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.errors import UsageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("validate")
def validate(
    model: Annotated[str, typer.Option(help="The model's name, as `cap schema` has it; for example StreamPacket.")],
) -> None:
    """Check the JSON on stdin. What is wrong with it is told on stderr, by its place.

    Exit code 0 when it is valid, 1 when it is not, 2 when there is no such model.
    """
    import sys

    from pydantic import ValidationError

    from bridge.cli.exec.output import say

    adapter = _model(model)
    try:
        adapter.validate_json(sys.stdin.buffer.read())
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            place = ".".join(map(str, fault["loc"]))
            say("invalid", f"{place}: {fault['msg']}" if place else fault["msg"])
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

    if model is not None:
        _model(model)
    found: Any = {name: model_schema(name) for name in sorted(MODELS)} if model is None else model_schema(model)
    typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())


def _model(name: str) -> TypeAdapter[Any]:
    from bridge.api.cap.contract import MODELS

    if name not in MODELS:
        raise UsageError(f"There is no model {name[:80]!r}; there are {', '.join(sorted(MODELS))}.")
    return MODELS[name]
