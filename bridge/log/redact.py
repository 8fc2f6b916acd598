"""Copies of a log with more removed than when it was written, to be shared.

A secret that is found late in a log is also in earlier records, so a log is searched as a whole before the first record
is copied (`bridge.log.split_secrets`); `Remover` makes the records of the copy; `find_leaks` searches the copy.

A removed secret leaves a digest, as `bridge.redact` does, so that equal secrets stay equal. A removed text leaves as
many characters as it had. Its digest is made with a key that is thrown away, and a short text leaves none: otherwise
words could be tried against it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes
from typing import Any

import orjson

from bridge import __version__, exact_json
from bridge.errors import ConfigError, UsageError
from bridge.exact_json import safe_dumps
from bridge.log.filters import Filters, chosen
from bridge.log.log import Log
from bridge.log.read import RecordReader, Trouble, is_record, log_files, parse_line, read_lines, request_of
from bridge.log.record import FORMAT
from bridge.log.split_secrets import KEPT, SHORTEST, Forms, RecordTexts, SplitSecretFinder
from bridge.redact import mark
from bridge.terminal import Progress, refuse_input, unfinished

MOST_SPLIT = 1_000
"""How many distinct secrets that span several records can be removed."""
DEEPEST = 200

FIXED = frozenset({"ts", "mono", "run", "seq", "chunk", "phase", "direction", "kind", "format"})
"""Members of a record that the log itself writes."""
_CONTENT = frozenset(
    {"arguments", "const", "default", "enum", "example", "examples", "input", "metadata", "source", "user"}
)
"""Names under which everything is content, at any depth. A request's `input` is a list, so it is not meant."""
_WORD = re.compile(r"[A-Za-z0-9_.:/#@+=-]{1,200}")
_NAME = re.compile(r"[A-Za-z0-9_.$:/-]{1,64}")
_HASHED = 16
"""Texts of at least this length leave a digest."""


class Remover:
    """Removes secrets, pattern matches and texts from records, and counts what it removed.

    `split` has located what spans several records.
    """

    def __init__(
        self,
        secrets: Sequence[str],
        patterns: Sequence[re.Pattern[str]] = (),
        *,
        texts: bool = False,
        key: bytes = b"",
        split: SplitSecretFinder | None = None,
    ) -> None:
        self._split = split or SplitSecretFinder()
        self.removed = {"secrets": len(self._split.splits), "patterns": 0, "texts": 0}
        self._forms = Forms(secrets)
        self._raw = self._forms.in_json(nested=True)
        self._patterns = tuple(patterns)
        self._texts = texts
        self._key = key
        counts = {"secrets": len(secrets), "patterns": len(patterns)}
        self._done = {"program": f"turnbridge {__version__}", **counts, "texts": texts}

    def copy(self, lines: Iterable[tuple[bytes, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        """The entries of a copy, from lines and their parsed entries. The first is always a header."""
        for number, (line, entry) in enumerate(lines):
            is_header = entry.get("kind") == "header"
            if number == 0 and not is_header:
                yield self._header_for(entry)
            has_nothing = not self._texts and not self._patterns and (self._raw is None or not self._raw.search(line))
            is_clean = has_nothing and number not in self._split.cuts and "kind" in entry and not is_header
            yield entry if is_clean else self.entry(entry, number)

    def entry(self, entry: dict[str, Any], number: int) -> dict[str, Any]:
        """A record, or a line of a transcript, without what is removed. `number` is the one that was searched."""
        if cuts := self._split.cuts.get(number):
            RecordTexts(entry).cut(cuts)
        if not is_record(entry):
            return entry | {"msg": self.value(entry.get("msg"), "msg")}
        out: dict[str, Any] = {}
        for name, value in entry.items():
            if name == "payload" and self._texts and entry["kind"] == "client_sse" and isinstance(value, str):
                # The events keep their names and the shape of their data.
                out[name] = "\n".join(map(self._line_of_stream, value.split("\n")))
            else:
                out[name] = value if name in FIXED else self.value(value, name)
        if entry["kind"] == "header":
            before = entry.get("redacted")
            out["redacted"] = [*(before if isinstance(before, list) else ()), self._done]
        return out

    def value(self, value: Any, name: str = "", depth: int = DEEPEST) -> Any:
        """Any value of a record, which stands under this name, without what is removed."""
        if isinstance(value, str):
            return self._text(value, is_kept=name in KEPT and _WORD.fullmatch(value) is not None)
        if isinstance(value, dict | list) and not depth:
            return f"[redacted: nested deeper than {DEEPEST} levels]"
        if isinstance(value, dict):
            return {
                self._text(key, is_kept=_NAME.fullmatch(key) is not None): self.value(
                    member, "arguments" if name in _CONTENT else key, depth - 1
                )
                for key, member in value.items()
            }
        if isinstance(value, list):
            return [self.value(member, name, depth - 1) for member in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = exact_json.dumps(value).decode()
            clean = self._cut(text)
            return value if clean == text else clean
        return value

    def _header_for(self, entry: dict[str, Any]) -> dict[str, Any]:
        """A header for a copy whose first line, this one, is not a header."""
        source = entry if is_record(entry) else {"ts": "", "mono": 0.0, "seq": 0}
        position = {name: source[name] for name in ("ts", "mono", "seq")}
        run = {"run": entry["run"]} if isinstance(entry.get("run"), str) else {}
        about = {"phase": "header", "direction": "none", "kind": "header", "req_id": None, "format": FORMAT}
        return position | run | about | {"redacted": [self._done]}

    def _text(self, text: str, *, is_kept: bool) -> str:
        return self._placeholder(text) if self._texts and text and not is_kept else self._cut(text)

    def _cut(self, text: str) -> str:
        """A text without secrets and without what the patterns match."""
        if self._forms.pattern is not None:
            text, count = self._forms.pattern.subn(lambda found: mark(self._forms.plain[found[0]]), text)
            self.removed["secrets"] += count
        for pattern in self._patterns:
            text, count = pattern.subn(lambda found: mark(found[0]), text)
            self.removed["patterns"] += count
        return text

    def _placeholder(self, text: str) -> str:
        self.removed["texts"] += 1
        if len(text) < _HASHED:
            return "x" * len(text)
        digest = hmac.new(self._key, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:8]
        return f"[text:{digest}]".ljust(len(text), "x")

    def _line_of_stream(self, line: str) -> str:
        field, _, rest = line.partition(":")
        head = "" if line.startswith("{") else f"{field}: " if rest.startswith(" ") else f"{field}:"
        data = line[len(head) :]
        if head and field != "data":
            is_known = line in ("", ": keepalive") or (field in ("event", "id", "retry") and _WORD.fullmatch(data))
            return self._cut(line) if is_known else self._placeholder(line)
        try:
            return head + exact_json.dumps(self.value(exact_json.loads(data))).decode()
        except orjson.JSONDecodeError:
            return head + (data if data == "[DONE]" else self._placeholder(data))


def is_transcript_line(entry: Any) -> bool:
    """Whether it is a line of a plain transcript."""
    return isinstance(entry, dict) and isinstance(entry.get("msg"), dict) and "t" in entry and "dir" in entry


@dataclass(frozen=True, slots=True)
class Leak:
    """Where a secret remains."""

    line: int
    req_id: str | None
    kind: str
    first: int | None = None
    """The line where it begins, when it is split."""

    def __str__(self) -> str:
        where = f"line {self.line}" if self.first is None else f"split over lines {self.first} to {self.line}"
        return f"{where}, {self.kind}{f' of {self.req_id}' if self.req_id else ''}"


def find_leaks(lines: Iterable[bytes], secrets: Sequence[str], fragments: Sequence[str] = ()) -> list[Leak]:
    """The secrets that remain in the lines of a log. `fragments` count only where they span several texts."""
    raw = Forms(secrets).in_json(nested=False)
    finder = SplitSecretFinder(secrets, fragments=fragments, discover=False)
    found: dict[int, Leak] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            record = None
        record = record if isinstance(record, dict) else {}
        if raw is not None and raw.search(line):
            found[number] = _leak(number, record.get("req_id"), record.get("kind"))
        finder.feed(number, record)
    for (first, _, _), (last, (req_id, kind, *_)) in finder.end().splits.items():
        found.setdefault(last, _leak(last, req_id, kind, first))
    return [leak for _, leak in sorted(found.items())]


def _leak(line: int, req_id: Any, kind: Any, first: int | None = None) -> Leak:
    return Leak(line, req_id if isinstance(req_id, str) else None, str(kind or "transcript"), first)


# Copying

Selection = dict[str, str]
"""The requests to copy, each with its run."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The outcome of `copy_log`."""

    records: int
    """Without the header."""
    removed: dict[str, int]
    leaks: list[Leak]
    """Where secrets remain. If any does, no copy is kept."""
    trouble: Trouble


def copy_log(
    log: Path,
    output: Path,
    secrets: Sequence[str],
    patterns: Sequence[re.Pattern[str]],
    *,
    texts: bool,
    filters: Filters,
    progress: Progress,
) -> Copied:
    """Copy the requests that match the filters. Raises ConfigError or UsageError."""
    files = log_files(log)
    refuse_input(output, files)
    if log.is_dir() and output.resolve().parent == log.resolve():
        raise ConfigError(f"{output} would become part of the log. Write the copy outside of {log}.")
    for path in files:
        if not path.is_file():
            raise ConfigError(f"{path} is not a regular file. Save it to one: a log is read twice.")
    selection = None if filters.are_none else _selection(log, filters)
    # What is appended meanwhile is not copied: nothing has searched it.
    sizes = {path: path.stat().st_size for path in files}
    progress.size = sum(sizes.values()) * (1 if texts else 2)

    def reader() -> RecordReader:
        return RecordReader(files, on_read=progress.advance)

    known, found = list(secrets), list[str]()
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
                file.write(safe_dumps(entry) + b"\n")
        with copy.open("rb") as lines:
            leaks = find_leaks(lines, known, found)
        if not leaks:
            copy.replace(output)
    return Copied(max(count, 0), remover.removed, leaks, source.trouble)


def _selection(log: Path, filters: Filters) -> Selection:
    """The requests that match. Raises UsageError when none does."""
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


def read_secrets(given: Sequence[str], files: Sequence[Path]) -> list[str]:
    """The secrets to remove: those given, and each line of the files. Raises ConfigError or UsageError."""
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


def parse_patterns(given: Sequence[str]) -> list[re.Pattern[str]]:
    """The patterns to remove. Raises UsageError."""
    found = []
    for text in given:
        try:
            found.append(re.compile(text))
        except re.error as error:
            raise UsageError(f"Invalid --pattern {text}: {error}.") from None
        if found[-1].search(""):
            raise UsageError(f"--pattern {text} matches an empty text and would be found everywhere.")
    return found
