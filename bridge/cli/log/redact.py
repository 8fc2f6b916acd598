"""`codex-bridge log redact`: a copy of a log with more removed, to be given away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.cli.log.options import LogPath, filtered

if TYPE_CHECKING:
    import re

    from bridge.protolog.filters import Filters
    from bridge.protolog.read import RecordReader
    from bridge.protolog.scrub import Scrubber
    from bridge.protolog.spelled import SpelledFinder

SHOWN = 10
"""So many places of a secret that remains are named."""
MOST_SPELLED = 1_000
"""So many texts that are found cut into pieces can be looked for everywhere."""


@filtered
def command(
    log: LogPath,
    filters: Filters,
    output: Annotated[Path, typer.Option(metavar="FILE", help="Where the copy goes.", show_default=False)],
    secret: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Remove this text wherever it stands. May be repeated.")
    ] = None,
    secret_file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Remove each line of this file: other programs cannot see it there."),
    ] = None,
    pattern: Annotated[
        list[str] | None, typer.Option(metavar="REGEX", help="Remove what this finds in any text. May be repeated.")
    ] = None,
    texts: Annotated[
        bool, typer.Option("--texts", help="Remove all that was said; times and shapes of events stay.")
    ] = False,
) -> None:
    """Copy a log, or some requests of it, with more removed.

    What is removed leaves a hash; secrets, what a pattern finds, and keys of a known shape go also where they are cut
    into deltas. At the end the copy is searched for them. Where one remains, the places are named, no copy is left, and
    the exit code is 1.
    """
    from bridge.cli.log.terminal import Progress
    from bridge.cli.streams import say
    from bridge.errors import ConfigError, UsageError
    from bridge.protolog.export.output import refuse_input, unfinished
    from bridge.protolog.leaks import Leak, LeakFinder
    from bridge.protolog.read import RecordReader, log_files
    from bridge.protolog.spelled import SpelledFinder

    named = _secrets(secret or [], secret_file or [])
    if not (named or pattern or texts) and filters.are_none:
        raise UsageError("Say what to remove: --secret, --secret-file, --pattern or --texts; or filters, what to keep.")
    files = log_files(log)
    refuse_input(output, files)
    if log.is_dir() and output.resolve().parent == log.resolve():
        raise ConfigError(f"{output} would become a part of the log. Put the copy outside of {log}.")
    patterns = _patterns(pattern or [])
    progress = Progress()
    progress.size = sum(file.stat().st_size for file in files)
    wanted = _wanted(log, filters)
    leaks: list[Leak] = []
    with unfinished(output) as copy:
        spelled = SpelledFinder(patterns)
        reader = RecordReader(files, told=progress.told)
        scrubber, count = _write(copy, reader, wanted, _Removed(named, [], patterns, texts), None if texts else spelled)
        matched = list(spelled.matched)
        if matched or spelled.shaped:
            if len(matched) + len(spelled.shaped) > MOST_SPELLED:
                raise UsageError(
                    f"More than {MOST_SPELLED} different texts are to go that are cut; --texts removes all."
                )
            named += spelled.shaped
            progress.size *= 2
            reader = RecordReader(files, told=progress.told)
            scrubber, count = _write(copy, reader, wanted, _Removed(named, matched, patterns, texts))
        finder = LeakFinder(named, matched)
        with copy.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                leaks += finder.feed(number, line)
        if not leaks:
            copy.replace(output)
    progress.clear()
    for sentence in reader.trouble.sentences():
        say("note", sentence + ".")
    if leaks:
        for leak in leaks[:SHOWN]:
            say("error", f"a secret remains: {leak}")
        more = f" (and {len(leaks) - SHOWN} more places)" if len(leaks) > SHOWN else ""
        say("error", f"no copy was written{more}; --texts leaves nothing that was said")
        raise typer.Exit(1)
    gone = ", ".join(f"{number} {what}" for what, number in scrubber.removed.items() if number) or "nothing"
    typer.echo(f"{output}: {max(count, 0)} records, removed {gone}", err=True)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requests that are copied, and their runs: what befell a backend may explain its answers."""

    requests: frozenset[str]
    runs: frozenset[str]

    def has(self, record: dict[str, Any]) -> bool:
        """Whether a record is copied."""
        from bridge.protolog.read import request_of

        name = record["req_id"]
        return record.get("run", "") in self.runs and (name is None or request_of(name)[0] in self.requests)

    def has_transcript(self, stem: str) -> bool:
        """Whether one of them stands in a plain transcript of this name, which is then copied whole."""
        return any(name.startswith(f"{stem}-") for name in self.requests)


def _wanted(log: Path, filters: Filters) -> Wanted | None:
    """The requests that fit; None for all. Raises UsageError when there is none."""
    if filters.are_none:
        return None
    from bridge.cli.log.options import chosen
    from bridge.errors import UsageError
    from bridge.protolog.log import Log

    found = {summary.id: summary.run for summary in chosen(Log(log), filters)}
    if not found:
        raise UsageError(f"{log} holds no request that fits.")
    return Wanted(frozenset(found), frozenset(found.values()))


@dataclass(frozen=True, slots=True)
class _Removed:
    """What is to go. `matched` is what patterns have found over several pieces."""

    named: list[str]
    matched: list[str]
    patterns: list[re.Pattern[str]]
    texts: bool


def _write(
    copy: Path, reader: RecordReader, wanted: Wanted | None, removed: _Removed, spelled: SpelledFinder | None = None
) -> tuple[Scrubber, int]:
    """Write the copy; what counts what was removed from it, and how many records it has."""
    import secrets

    from bridge.protolog.loose import dump
    from bridge.protolog.scrub import Scrubber

    scrubber = Scrubber(removed.named, removed.patterns, texts=removed.texts, key=secrets.token_bytes(32))
    in_pieces = [] if removed.texts else [*removed.named, *removed.matched]
    count = -1  # the header
    with copy.open("wb") as file:
        for entry in _copied(reader, wanted, scrubber, in_pieces, spelled):
            file.write(dump(entry) + b"\n")
            count += 1
    if spelled is not None:
        spelled.end()
    return scrubber, count


def _copied(
    reader: RecordReader,
    wanted: Wanted | None,
    scrubber: Scrubber,
    in_pieces: list[str],
    spelled: SpelledFinder | None,
) -> Iterator[dict[str, Any]]:
    from bridge.protolog.pieces import PieceScrubber
    from bridge.protolog.scrub import scrubbed

    pieces = PieceScrubber(in_pieces, scrubber.count_secret)
    entries = _entries(reader) if wanted is None else _numbered(_entries(reader, wanted))
    if spelled is not None:
        entries = _looked_at(entries, spelled)
    for entry in scrubbed(entries, scrubber):
        yield from pieces.feed(entry)
    yield from pieces.rest()


def _looked_at(
    entries: Iterator[tuple[bytes, dict[str, Any]]], spelled: SpelledFinder
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for line, entry in entries:
        spelled.feed(entry)
        yield line, entry


def _secrets(given: list[str], files: list[Path]) -> list[str]:
    from bridge.errors import ConfigError, UsageError
    from bridge.protolog.scrub import SHORTEST

    found = list(given)
    for path in files:
        try:
            found += [line for line in path.read_text().splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}.") from error
    if any(not _is_unicode(text) for text in found):
        raise UsageError("A secret is not valid UTF-8: no log can hold it.")
    short = sum(len(text) < SHORTEST for text in found)
    if short:
        raise UsageError(f"{short} secret(s) have fewer than {SHORTEST} characters: they would be found everywhere.")
    return list(dict.fromkeys(found))


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _patterns(given: list[str]) -> list[re.Pattern[str]]:
    import re

    from bridge.errors import UsageError

    found = []
    for text in given:
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise UsageError(f"--pattern {text}: {error}.") from None
        if pattern.search(""):
            raise UsageError(f"--pattern {text} fits an empty text: it would be found everywhere.")
        found.append(pattern)
    return found


def _numbered(entries: Iterator[tuple[bytes, dict[str, Any]]]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The same, without gaps in the numbers of each run: what was left out on purpose is not missing."""
    numbers: Counter[str] = Counter()
    for line, entry in entries:
        if "seq" in entry:
            run = entry.get("run", "")
            entry["seq"] = numbers[run]
            numbers[run] += 1
        yield line, entry


def _entries(reader: RecordReader, wanted: Wanted | None = None) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each line, and what it says: records, and lines of transcripts, which the reader would turn into records."""
    from bridge.protolog.read import is_record, parse_line, read_lines
    from bridge.protolog.scrub import is_transcript_line

    for path in reader.files:
        transcript = wanted is None or wanted.has_transcript(path.stem)
        for offset, line in read_lines(path, reader.trouble):
            reader.told(len(line) + 1)
            entry = parse_line(line)
            if is_record(entry):
                reader.check(entry)
                if wanted is None or wanted.has(entry):
                    yield line, entry
            elif is_transcript_line(entry):
                if transcript:
                    yield line, entry
            else:
                reader.note_foreign(path, offset)
