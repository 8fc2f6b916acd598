"""`turnbridge log redact`: a copy of a log with more removed, to be shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.log.commands.options import Filters, LogPath, filtered

if TYPE_CHECKING:
    import re

    from bridge.log.read import RecordReader

SHOWN = 10
"""How many remaining secrets are reported."""
MOST_SPLIT = 1_000
"""How many distinct secrets that span several records can be removed."""

Selection = dict[str, str]
"""The requests to copy, each with its run."""


@filtered
def command(
    log: LogPath,
    output: Annotated[Path, typer.Option(metavar="FILE", help="File to write the copy to.", show_default=False)],
    secret: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Remove this text everywhere. May be repeated.")
    ] = None,
    secret_file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Remove each line of this file; unlike --secret, hidden from other users."),
    ] = None,
    pattern: Annotated[
        list[str] | None, typer.Option(metavar="REGEX", help="Remove what this matches. May be repeated.")
    ] = None,
    texts: Annotated[
        bool, typer.Option("--texts", help="Remove all content; keep times and the shapes of events.")
    ] = False,
    *,
    filters: Filters,
) -> None:
    """Copy a log, or some of its requests, with more removed.

    What is removed leaves a digest. Secrets, pattern matches and keys of a known shape are also removed where they are
    split into deltas. Then the copy is searched for them. If one remains, its location is reported, no copy is kept,
    and the exit code is 1.
    """
    from secrets import token_bytes

    from bridge.errors import ConfigError, UsageError
    from bridge.log.commands.terminal import Progress
    from bridge.log.json_access import dump
    from bridge.log.read import RecordReader, log_files
    from bridge.log.redact import Remover, SplitSecretFinder, find_leaks
    from bridge.terminal import refuse_input, say, unfinished

    known, patterns, found = _secrets(secret or [], secret_file or []), _patterns(pattern or []), list[str]()
    if not (known or patterns or texts) and filters.are_none:
        raise UsageError("Specify what to remove (--secret, --secret-file, --pattern, --texts) or filters to select.")
    files = log_files(log)
    refuse_input(output, files)
    if log.is_dir() and output.resolve().parent == log.resolve():
        raise ConfigError(f"{output} would become part of the log. Write the copy outside of {log}.")
    for path in files:
        if not path.is_file():
            raise ConfigError(f"{path} is not a regular file. Save it to one: a log is read twice.")
    selection = None if filters.are_none else _selection(log, filters)
    progress = Progress()
    # What is appended meanwhile is not copied: nothing has searched it.
    sizes = {path: path.stat().st_size for path in files}
    progress.size = sum(sizes.values()) * (1 if texts else 2)

    def reader() -> RecordReader:
        return RecordReader(files, on_read=progress.advance)

    split, source, count = SplitSecretFinder(), reader(), -1  # the header does not count
    with unfinished(output) as copy:
        while not texts:
            # What is discovered at the end of the log may be split in its beginning: the second time, all is known.
            split = SplitSecretFinder(known, patterns, found)
            for number, (_, entry) in enumerate(_entries(reader(), sizes, selection)):
                split.feed(number, entry)
            split.end()
            shaped, matched = split.shaped.keys() - set(known), split.matched.keys() - set(found)
            if len(shaped) + len(matched) > MOST_SPLIT:
                raise UsageError(
                    f"Over {MOST_SPLIT:,} distinct secrets span several records. Use --texts to remove all content."
                )
            if not shaped and not matched:
                break
            known, found = [*known, *sorted(shaped)], [*found, *sorted(matched)]
        remover = Remover(known, patterns, texts=texts, key=token_bytes(32), split=split)
        with copy.open("wb") as file:
            for count, entry in enumerate(remover.copy(_entries(source, sizes, selection))):  # noqa: B007
                file.write(dump(entry) + b"\n")
        with copy.open("rb") as lines:
            leaks = find_leaks(lines, known, found)
        if not leaks:
            copy.replace(output)
    progress.clear()
    for sentence in source.trouble.sentences():
        say("note", sentence + ".")
    if leaks:
        for leak in leaks[:SHOWN]:
            say("error", f"a secret remains: {leak}")
        more = f" ({len(leaks) - SHOWN} more locations)" if len(leaks) > SHOWN else ""
        say("error", f"no copy was written{more}; use --texts to remove all content")
        raise typer.Exit(1)
    removed = ", ".join(f"{number} {what}" for what, number in remover.removed.items() if number) or "nothing"
    typer.echo(f"{output}: {max(count, 0)} records, removed {removed}", err=True)


def _selection(log: Path, filters: Filters) -> Selection:
    """The requests that match. Raises UsageError when none does."""
    from bridge.errors import UsageError
    from bridge.log.commands.requests import chosen
    from bridge.log.log import Log

    found = {summary.id: summary.run for summary in chosen(Log(log), filters)}
    if not found:
        raise UsageError(f"No request in {log} matches the filters.")
    return found


def _entries(
    reader: RecordReader, sizes: dict[Path, int], selection: Selection | None
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each line to copy, with its JSON, up to these sizes. The records of a selection are numbered without gaps.

    Lines of transcripts are copied as they are, for whole files: the reader would turn them into records. So are the
    records of a run that belong to no request: they may explain its answers.
    """
    from bridge.log.read import is_record, parse_line, read_lines, request_of
    from bridge.log.redact import is_transcript_line

    numbers: Counter[str] = Counter()
    runs = set(selection.values()) if selection is not None else set()
    for path in reader.files:
        transcript = selection is None or any(name.startswith(f"{path.stem}-") for name in selection)
        for offset, line in read_lines(path, reader.trouble, end=sizes[path]):
            reader.on_read(len(line) + 1)
            entry = parse_line(line)
            if is_record(entry):
                reader.check(entry)
                if selection is not None:
                    name, run = entry["req_id"], entry.get("run", "")
                    if run not in runs or (name is not None and request_of(name)[0] not in selection):
                        continue
                    entry["seq"] = numbers[run]
                    numbers[run] += 1
                yield line, entry
            elif not is_transcript_line(entry):
                reader.trouble.note_foreign(path.name, offset)
            elif transcript:
                yield line, entry


def _secrets(given: list[str], files: list[Path]) -> list[str]:
    from bridge.errors import ConfigError, UsageError
    from bridge.log.redact import SHORTEST

    found = list(given)
    for path in files:
        try:
            found += [line for line in path.read_text().splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}.") from error
    if any("\ud800" <= character <= "\udfff" for text in found for character in text):
        raise UsageError("A secret is not valid UTF-8, so no log can contain it.")
    short = sum(len(text) < SHORTEST for text in found)
    if short:
        raise UsageError(f"{short} secret(s) have fewer than {SHORTEST} characters and would be found everywhere.")
    return list(dict.fromkeys(found))


def _patterns(given: list[str]) -> list[re.Pattern[str]]:
    import re

    from bridge.errors import UsageError

    found = []
    for text in given:
        try:
            found.append(re.compile(text))
        except re.error as error:
            raise UsageError(f"Invalid --pattern {text}: {error}.") from None
        if found[-1].search(""):
            raise UsageError(f"--pattern {text} matches an empty text and would be found everywhere.")
    return found
