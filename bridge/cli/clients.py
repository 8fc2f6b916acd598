"""`turnbridge keys`: the keys of clients, each with a name and its own limits; `turnbridge usage`: their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.cli.flags import Flags, setting_flags

if TYPE_CHECKING:
    from datetime import datetime

    from bridge.settings import Settings
    from bridge.store.key_store import ClientKey, KeyStore

keys = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

NAME = typer.Argument(metavar="NAME", help="1 to 64 letters, digits, dots, dashes or underscores.")


@keys.command("add")
@setting_flags(["config"])
def add(
    flags: Flags,
    name: Annotated[str, NAME],
    models: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Model that the key may use, or a pattern such as 'gpt-5*'. Separate several with commas, or "
            "repeat the flag. [all models]",
        ),
    ] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, metavar="N", help="Turns at once. [PROXY_MAX_TURNS]")] = None,
    max_requests: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Requests per minute. [no limit]")
    ] = None,
    max_connections: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Open requests and WebSockets at once. [no limit]")
    ] = None,
    max_body: Annotated[
        int | None, typer.Option(min=1024, metavar="BYTES", help="Size of a request body. [PROXY_MAX_BODY]")
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Expiry: 2027-01-31, 2027-01-31T08:30, or after 12h, 30d. [never]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object that contains the key.")] = False,
) -> None:
    """Create a key for a client and print it. It is shown only once: only its hash is stored.

    A running bridge of the same user accepts the key at once, as well as PROXY_API_KEY or the key made at first start.
    Stored responses and usage belong to the client's key, under the label that `keys list` shows.
    """
    from datetime import UTC, datetime

    import orjson

    from bridge.terminal import say

    now = datetime.now(UTC).replace(microsecond=0)
    key, kept = configured_keys(flags).add(
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
    say("note", f"the key of {name} ({kept.label}) is not shown again")


@keys.command("list")
@setting_flags(["config"])
def list_keys(
    flags: Flags, json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False
) -> None:
    """List the keys made with `keys add`: names, labels and limits.

    The keys themselves are not stored.
    """
    import time

    import orjson

    from bridge.terminal import Screen

    known = configured_keys(flags).read()
    if json:
        for key in known:
            typer.echo(orjson.dumps(describe(key)).decode())
        return
    if not known:
        typer.echo("no keys yet; `turnbridge keys add NAME` creates one", err=True)
        return
    # A name is never cut: `keys revoke` needs it.
    name = max(12, *(len(key.name) for key in known))
    typer.echo(f"{'name':{name}}  {'label':16}  {'made':10}  {'ends':10}  may use")
    for key in known:
        ends = "never" if key.expires is None else f"{_day(key.expires)}"
        shown = "expired" if key.has_expired(time.time()) else ends
        first, *more = _wrapped(describe_allowance(key), Screen().width - name - 44)
        typer.echo(f"{key.name:{name}}  {key.label}  {_day(key.created)}  {shown:10}  {first}")
        for line in more:
            typer.echo(f"{'':{name + 44}}{line}")


@keys.command("revoke")
@setting_flags(["config"])
def revoke(flags: Flags, name: Annotated[str, NAME]) -> None:
    """Revoke a key. A running bridge refuses its requests at once and ends running ones within two seconds."""
    revoked = configured_keys(flags).revoke(name)
    typer.echo(f"revoked {revoked.name} ({revoked.label})")


def configured_keys(flags: Flags) -> KeyStore:
    """The keys, where the configuration has them: in the database of PROXY_STORE, or in a file."""
    from bridge.settings.file import load_configuration
    from bridge.store.key_store import open_keys

    return open_keys(load_configuration(**flags)[0])


def describe(key: ClientKey) -> dict[str, Any]:
    """A key as JSON, without its hash."""
    known = key.model_dump(mode="json", exclude={"sha256"})
    return {"name": known.pop("name"), "label": key.label, **known}


def describe_allowance(key: ClientKey) -> str:
    """The models and limits of a key, in words."""
    limits = [
        (key.max_turns, "{:,} at once"),
        (key.max_requests, "{:,} a minute"),
        (key.max_connections, "{:,} open"),
        (key.max_body, "{:,} bytes"),
    ]
    given = [words.format(limit) for limit, words in limits if limit is not None]
    return ", ".join([*(key.models or ("all models",)), *given])


def parse_end(text: str, now: datetime) -> datetime:
    """A time in the future: ISO (local time unless it names a zone), or a duration. Raises UsageError."""
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
            f"Invalid --expires {text}. Write 2027-01-31, 2027-01-31T08:30, or a duration: 45m, 12h, 30d, 8w."
        ) from None
    if end <= now:
        raise UsageError(f"--expires {text} is in the past.")
    return end


def _day(moment: datetime) -> str:
    """The local date; the given one where local time is beyond the calendar."""
    try:
        return f"{moment.astimezone():%Y-%m-%d}"
    except OverflowError:
        return f"{moment:%Y-%m-%d}"


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, max(width, 16), break_on_hyphens=False) or [""]


def usage(
    days: Annotated[int, typer.Option(min=1, max=400, help="Number of days to show, up to today.")] = 30,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file with prices, as for serve. [PROXY_CONFIG]")
    ] = None,
) -> None:
    """Show the tokens used and their cost, by day, key and model.

    Counts all requests to `serve` that reached a model, with or without an event log. A key is shown by the name that
    `turnbridge keys add` gave it, as PROXY_API_KEY or (generated) if it is the operator's, or by its label (`key-` and
    the start of its SHA-256 digest). The cost is that of today's prices: those in the table [prices.models] of the
    configuration file.
    """
    from datetime import UTC, datetime, timedelta

    import orjson

    from bridge.routing.setup import read_prices
    from bridge.server.pages import usage_entry
    from bridge.settings.file import load_configuration
    from bridge.store.copying import configured_place

    settings, file = load_configuration(config=config)
    place, prices = configured_place(settings), read_prices(file)
    since = (datetime.now(UTC).date() - timedelta(days=days - 1)).isoformat()
    if not place.exists():
        typer.echo("no usage recorded yet", err=True)
        return
    with place.contents(create=False) as contents:
        rows = [usage_entry(row, prices) for row in sorted(contents.usage(since))]
    names = {key.label: key.name for key in place.keys.read()}
    if json:
        for row in rows:
            typer.echo(orjson.dumps({**row, "name": names.get(str(row["key"]))}).decode())
        return
    names = _operators_keys(settings) | names
    cost = f" {prices.currency:>9}" if prices else ""
    typer.echo(f"{'day':10} {'key':16} {'model':16} {'requests':>8} {'failed':>6} {'input':>9} {'output':>8}{cost}")
    for row in rows:
        who = names.get(str(row["key"]), str(row["key"]))
        if prices:
            cost = f" {'-':>9}" if row["cost"] is None else f" {row['cost']:>9.4f}"
        typer.echo(
            f"{row['day']:10} {who:16.16} {row['model']!s:16.16} {row['requests']:>8} {row['failed']:>6} "
            f"{row['input_tokens']:>9} {row['output_tokens']:>8}{cost}"
        )


def _operators_keys(settings: Settings) -> dict[str, str]:
    """What the keys without a name of their own are called, by label; --json leaves them to the label."""
    from contextlib import suppress

    from bridge.errors import ConfigError
    from bridge.settings import api_key_file
    from bridge.store.key_store import given_key, own_key

    names = {(key := given_key(each)).label: key.name for each in settings.api_keys}
    if (path := api_key_file()).exists():  # own_key would create it
        with suppress(ConfigError):
            names[given_key(own_key(path)).label] = "(generated)"
    return names
