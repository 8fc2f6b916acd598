"""`codex-bridge keys`: the keys of clients, each with a name, and with limits of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from datetime import datetime

    from bridge.auth.key_store import ClientKey

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

NAME = typer.Argument(metavar="NAME", help="1 to 64 letters, digits, dots, dashes or underscores.")


@app.command("add")
def add(
    name: Annotated[str, NAME],
    models: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="A model that it may use, or a pattern such as 'gpt-5*'; several are separated by commas, or given "
            "one by one. [every model]",
        ),
    ] = None,
    max_turns: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Turns at once. [what the bridge has room for]")
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Requests to a model that it may begin in a minute. [any]")
    ] = None,
    max_connections: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Requests and WebSockets open at once. [any]")
    ] = None,
    max_body: Annotated[
        int | None, typer.Option(min=1024, metavar="BYTES", help="Size of a request. [PROXY_MAX_BODY]")
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When it ends: 2027-01-31, 2027-01-31T08:30, or in 12h, 30d. [never]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, with the key in it.")] = False,
) -> None:
    """Make a key for a client. It is printed on stdout, this once; only its hash is kept.

    A bridge that runs as the same user lets it in at once, beside PROXY_API_KEY or the key that was made at first
    start. What a client stores and uses belongs to its key, under the label that `keys list` shows.
    """
    from datetime import UTC, datetime

    import orjson

    from bridge.auth.key_store import add_key
    from bridge.cli.streams import say
    from bridge.config import key_store_file

    now = datetime.now(UTC).replace(microsecond=0)
    key, kept = add_key(
        key_store_file(),
        name,
        now=now,
        expires=None if expires is None else parse_end(expires, now),
        models=tuple(pattern.strip() for given in models or () for pattern in given.split(",")),
        max_turns=max_turns,
        max_requests=max_requests,
        max_connections=max_connections,
        max_body=max_body,
    )
    if json:
        typer.echo(orjson.dumps({"key": key, **describe(kept)}).decode())
        return
    typer.echo(key)
    say("note", f"this is the key of {name} ({kept.label}); it is not shown again")


@app.command("list")
def list_keys(
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List the keys: names, labels, limits.

    Those are listed that were made with `keys add`. The keys themselves are kept nowhere.
    """
    import time

    import orjson

    from bridge.auth.key_store import read_keys
    from bridge.cli.log.terminal import Screen
    from bridge.config import key_store_file

    keys = read_keys(key_store_file())
    if json:
        for key in keys:
            typer.echo(orjson.dumps(describe(key)).decode())
        return
    if not keys:
        typer.echo("there are none; `codex-bridge keys add NAME` makes one", err=True)
        return
    # A name is never cut: it is what a key is revoked by.
    name = max(12, *(len(key.name) for key in keys))
    typer.echo(f"{'name':{name}}  {'label':16}  {'made':10}  {'ends':10}  may use")
    for key in keys:
        ends = "never" if key.expires is None else f"{_day(key.expires)}"
        shown = "expired" if key.has_expired(time.time()) else ends
        first, *more = _wrapped(describe_allowance(key), Screen().width - name - 44)
        typer.echo(f"{key.name:{name}}  {key.label}  {_day(key.created)}  {shown:10}  {first}")
        for line in more:
            typer.echo(f"{'':{name + 44}}{line}")


@app.command("revoke")
def revoke(name: Annotated[str, NAME]) -> None:
    """Take a key away. A running bridge refuses its requests at once, and ends what it answers in a second or two."""
    from bridge.auth.key_store import revoke_key
    from bridge.config import key_store_file

    gone = revoke_key(key_store_file(), name)
    typer.echo(f"revoked {gone.name} ({gone.label})")


def describe(key: ClientKey) -> dict[str, Any]:
    """What is known of a key, for programs."""
    known = key.model_dump(mode="json", exclude={"sha256"})
    return {"name": known.pop("name"), "label": key.label, **known}


def describe_allowance(key: ClientKey) -> str:
    """What a key may use, in words."""
    limits = [
        (key.max_turns, "{:,} at once"),
        (key.max_requests, "{:,} a minute"),
        (key.max_connections, "{:,} open"),
        (key.max_body, "{:,} bytes"),
    ]
    said = [words.format(limit) for limit, words in limits if limit is not None]
    return ", ".join([*(key.models or ("all models",)), *said])


def parse_end(text: str, now: datetime) -> datetime:
    """A time to come: ISO (in the zone of this machine unless it says another), or how far off. Raises UsageError."""
    import re
    from datetime import UTC, datetime, timedelta

    from bridge.errors import UsageError

    written = text.strip()
    after = re.fullmatch(r"([0-9]{1,6})([mhdw])", written)
    try:
        if after is not None:
            unit = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}[after[2]]
            end = now + timedelta(**{unit: int(after[1])})
        else:
            end = datetime.fromisoformat(written).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"--expires {text} is no time. Write 2027-01-31, 2027-01-31T08:30, or how far off: 45m, 12h, 30d, 8w."
        ) from None
    if end <= now:
        raise UsageError(f"--expires {text} is over already.")
    return end


def _day(moment: datetime) -> str:
    """Its day on this machine; where that would be beyond the calendar, the day that was given."""
    try:
        return f"{moment.astimezone():%Y-%m-%d}"
    except OverflowError:
        return f"{moment:%Y-%m-%d}"


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, max(width, 16), break_on_hyphens=False) or [""]
