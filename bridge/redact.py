"""Removes secrets before anything is written: by the name of a member, and by the shape of a value. Pure.

A removed secret leaves a short hash, so that equal secrets stay equal and matching still works.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import orjson

from bridge import exact_json

POLICY = "keys+shapes/1"
SHORTEST_KEY = 8
"""A shorter key of our own is not removed: it would match everywhere and protect nothing."""
SHORTEST_NUMBER = 10_000_000
"""A smaller number under the name of a secret (`"password": 31415926`) is a count, a size or a time limit."""

_SECRET_NAMES: dict[bytes, tuple[bytes, ...]] = {
    b"token": (b"token",),
    b"secret": (b"secret",),
    b"pass": (b"password", b"passwords", b"passwd", b"passphrase"),
    b"key": (b"apikey", b"apikeys", b"providerkey", b"secretkey", b"secretkeys", b"accesskey", b"privatekey"),
    b"authorization": (b"authorization",),
    b"cookie": (b"cookie",),
    b"jwt": (b"jwt",),
    b"credential": (b"credential", b"credentials"),
}
"""Endings of names, compared without case and separators: `ANTHROPIC_API_KEY`, `x-provider-key`, `refresh_token`. What
some of them have in common is searched first: that is several times faster than a regular expression."""
_SECRET_KEYS = tuple(name.decode() for names in _SECRET_NAMES.values() for name in names)

_ESCAPED = rb"(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9a-fA-F]{2})|(?<=%25[0-9a-fA-F]{2})"
_START = rb"(?:(?<![A-Za-z0-9_])|" + _ESCAPED + rb")"
"""A secret begins a word; the letter before it may belong to an escape, of JSON (`\\n`) or of a URL (`%3D`)."""
_STRICT_START = rb"(?:(?<![A-Za-z0-9_-])|" + _ESCAPED + rb")"
"""No dash before it either: then a run of such letters has one start, and however long it is, it is read once."""


_SHAPED: tuple[tuple[bytes, bytes, tuple[bytes, ...], bytes, bytes], ...] = (
    # (what each of them contains: first searched, then searched; how it begins, what follows, what stands before it)
    (b"-", b"k-", (b"sk-", b"rk-", b"pk-"), rb"[A-Za-z0-9_-]{16,}", _START),  # provider keys
    (b"-", b"cb-", (b"cb-",), rb"[A-Za-z0-9_-]{24,}", _START),  # our own keys
    (b"J", b"eyJ", (b"eyJ",), rb"[A-Za-z0-9_-]{8,512}+\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?", _START),  # JWT
    (b"J", b"eyJ", (b"eyJ",), rb"[A-Za-z0-9_-]{513,}+\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?", _STRICT_START),
    (b"_", b"gsk_", (b"gsk_",), rb"[A-Za-z0-9]{20,}", _START),  # Groq
    *((b"gh", kind, (kind,), rb"[A-Za-z0-9]{20,}", _START) for kind in (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_")),
    (b"_", b"_pat_", (b"github_pat_",), rb"[A-Za-z0-9_]{20,}", _START),
    (b"z", b"AIza", (b"AIza",), rb"[A-Za-z0-9_-]{30,}", _START),
    (b"-", b"xox", (b"xoxa-", b"xoxb-", b"xoxp-", b"xoxr-", b"xoxs-"), rb"[A-Za-z0-9-]{10,}", _START),
)
_SHAPES = re.compile(
    # The letters come first, then the test whether they begin a word: so the regex engine can skip to the letters.
    b"|".join(
        letters + rb"(?<=" + start + letters + rb")" + rest
        for _, _, beginnings, rest, start in _SHAPED
        for letters in beginnings
    )
)
_USERINFO = re.compile(rb"""(/)([^/\s:@"\\]{1,256}:[^/\s@"\\]{3,256})(?=@)""")
# `+` is both a separator and part of tokens. The lookahead makes the separators end where no other one follows.
_BEARER = re.compile(
    rb"([Bb][Ee][Aa][Rr][Ee][Rr](?:[ \t+]|%20|%09|\\{1,3}t)+(?![ \t+]|%20|%09|\\{1,3}t))([A-Za-z0-9._~+/=-]{8,})"
)
_NAMED = re.compile(rb"""((?::|=|%3[ADad])(?:[ ]|%20)?\\{0,3}(?:["']|%2[27])?)([A-Za-z0-9+/_.~-]{24,}={0,2})""")
_NAME = re.compile(
    rb"""(?i:token|secret|password|passwd|passphrase|(?:api|secret)[_-]?keys?)\\{0,3}(?:["']|%2[27])?[ ]?\Z"""
)
"""A long word after the name of a secret. It is found by what stands between them, which is rare."""
_QUERY = re.compile(
    rb"""((?:\?|&|;|%3[Ff]|%26)(?i:[a-z0-9_.-]{0,32}?(?:key|token|secret|password|signature|sig))(?:=|%3[Dd]))"""
    rb"""([^&;\s"'\\<>#]{6,})"""
)
"""The same in a URL, where it may be short."""

_URL = re.compile(r",? url: \S+")
_PATH = re.compile(
    r"(?<![\w:/.~-])"
    r"(?:~|/(?:home|root|Users|tmp|var|etc|usr|opt|srv|mnt|media|run|proc|private|Library|Volumes|nix|workspace))"
    r"/[^\s\"'`<>|,;:()\[\]{}]+"
)
"""The address of the provider and the paths of this machine are the operator's business."""

MAX_DEPTH = 128
"""Levels of a text that are searched for the names of secrets; orjson writes at most 254."""
_MARK = b"[redacted:"
_MARKED = re.compile(rb"\[redacted:[0-9a-f]{8}\]")
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]+")
"""A text of such characters is written in only one way."""

_TEXT_DELTAS = (b'{"type":"response.output_text.delta"', b'{"op":"delta"')

_LOWER, _SEPARATORS = bytes(range(256)).lower(), b"-_ "
_NAMES_BEFORE_VALUES = tuple(
    # The name, a quote of any nesting or none, white space, and what separates the name from its value.
    (hint, re.compile(hint + b"(?:" + endings + rb""")\\*(?:["']|%2[27])?(?:[\t\r\n]|\\+[nrt])*(?::|=|%3[ad])"""))
    for hint, names in _SECRET_NAMES.items()
    for endings in [b"|".join(rb"(?<=%b%b)%b" % name.partition(hint) for name in names)]
)
"""How each of these names stands before a value in a text without case and separators."""
_KELVIN = "\N{KELVIN SIGN}".encode()
"""Its lower case is an ASCII letter."""

_BETWEEN_MEMBERS = b',"'
"""Where a JSON text can be split: what has the shape of a secret ends before the quote, and a name is in one piece with
the colon after it. So each piece can be searched by itself, in any order."""
MOST_PIECES = 4096
"""Of one text; its rest counts as one piece."""
LONGEST_SEEN = 16 * 1024
MOST_SEEN = 1024 * 1024
"""Bytes of pieces that are remembered: of one piece, and of all."""
_OVERHEAD = 128


class Redactor:
    """Removes secrets from bytes of JSON. `known` are secrets of our own (API keys), which are removed everywhere.

    One that has fewer than `shortest` characters is not removed.
    """

    def __init__(self, known: tuple[str, ...] = (), *, shortest: int = SHORTEST_KEY) -> None:
        self._shortest = shortest
        self._seen: set[bytes] = set()
        self._seen_size = 0
        self._known: list[bytes] = []
        self._clean = ""
        self.learn(known)
        self.removed = 0
        """How many secrets have been removed so far."""

    def learn(self, known: Iterable[str]) -> None:
        """Also remove these from now on."""
        forms = {form for secret in known if len(secret) >= self._shortest for form in secret_forms(secret)}
        # The longest first: one may hold another.
        known_forms = {*self._known, *(form.encode() for form in forms)}
        self._known = sorted(known_forms, key=lambda form: (-len(form), form))
        self._clean = ""

    def suspicious(self, text: str) -> bool:
        """A quick check of texts put together: False means that each of them is clean, by shape and by name."""
        # What one read of the child gave is sent to the client as it is: most texts come here twice, one after another.
        if text == self._clean:
            return False
        data = text.encode()
        if any(secret in data for secret in self._known):
            return True
        # Whether a shape begins a word is not known here: another text may stand before it.
        if any(search is _SHAPES or search is _NAMED or search.search(data) for search in _searches(data)):
            return True
        self._clean = text
        return False

    def json(self, data: bytes) -> bytes:
        """A JSON text with its secrets removed, by name and by shape; still the same JSON otherwise."""
        if self._is_clean(data):
            return data
        try:
            value = exact_json.loads(data)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, dict | list) and _has_secret_key(value):
            scrubbed = exact_json.dumps(_scrub(value))
            self.removed += max(0, scrubbed.count(_MARK) - data.count(_MARK))
            data = scrubbed
        return self.text(data)

    def sse(self, chunk: bytes) -> bytes:
        """An event stream with the secrets in its events' data removed, also where each line is an event."""
        if self._is_clean(chunk):
            return chunk
        lines = chunk.split(b"\n")
        rest = []
        for index, line in enumerate(lines):
            data = line.removeprefix(b"data: ")
            # A text delta has only names of ours, and there may be thousands of them.
            if data.startswith(b"{") and not data.startswith(_TEXT_DELTAS):
                lines[index] = line[: len(line) - len(data)] + self.json(data)
            else:
                rest.append(index)
        together = b"\n".join([lines[index] for index in rest])
        if (cleaned := self.text(together)) != together:
            for index, line in zip(rest, cleaned.split(b"\n"), strict=True):
                lines[index] = line
        return b"\n".join(lines)

    def _is_clean(self, data: bytes) -> bool:
        """Whether `data` certainly holds no secret: nothing of a secret's shape, and no name of one before a value.

        Most of what is written was written a moment ago: names of members, and the text of an answer, which is repeated
        in each of its last events. So it is split into pieces, and pieces that were clean once are not searched again.
        """
        for secret in self._known:
            if secret in data:
                return False
        new = set(data.split(_BETWEEN_MEMBERS, MOST_PIECES)) - self._seen
        if not new:
            return True
        # With what stands around each piece, which may be part of a match.
        searched = _BETWEEN_MEMBERS.join((b"", *new, b""))
        if any(search is _NAMED or search.sub(_mark_found, searched) != searched for search in _searches(searched)):
            return False
        for piece in new:
            if len(piece) <= LONGEST_SEEN:
                self._seen_size += len(piece) + _OVERHEAD
                if self._seen_size > MOST_SEEN:
                    self._seen, self._seen_size = set(), 0
                self._seen.add(piece)
        return True

    def text(self, data: bytes) -> bytes:
        """Any text with the values of secret shape, and our own secrets, removed."""
        for secret in self._known:
            if secret in data:
                self.removed += data.count(secret)
                data = data.replace(secret, _mark(secret))
        if searches := _searches(data):
            marks = data.count(_MARK)
            for search in searches:
                data = search.sub(_mark_found, data)
            self.removed += max(0, data.count(_MARK) - marks)
        return data

    def without_known(self, data: bytes) -> bytes:
        """Any text without our own secrets, but with everything else. It leaves no hash: it is sent to others."""
        for secret in self._known:
            data = data.replace(secret, b"[redacted]")
        return data


def harmless(text: str) -> str:
    """The message of a provider or a child about a failure, without paths, and without the keys that some repeat."""
    shown = _PATH.sub("[path]", _URL.sub("", text))
    return Redactor().text(shown.encode("utf-8", "replace")).decode("utf-8", "replace")


def secrets_in(text: str) -> list[str]:
    """The secrets that a redactor would remove from a text by their shape."""
    found: list[str] = []

    def note(match: re.Match[bytes]) -> bytes:
        if (secret := _secret_of(match)) is not None:
            found.append(secret.decode("utf-8", "surrogatepass"))
        return _mark_found(match)

    data = text.encode("utf-8", "surrogatepass")
    for search in _searches(data):
        data = search.sub(note, data)
    return found


def secret_forms(secret: str) -> set[str]:
    """A secret as it may be written: plain, in JSON, in JSON within JSON, with escaped slashes, in a URL."""
    if _PLAIN.fullmatch(secret):
        return {secret}
    once = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    once |= {form.replace("/", "\\/") for form in once}
    once |= {form.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026") for form in once}
    twice = {json.dumps(form, ensure_ascii=False)[1:-1] for form in once}
    return {secret, quote(secret, safe=""), *once, *twice}


def mark(secret: str) -> str:
    return _mark(secret.encode("utf-8", "replace")).decode()


def _mark(secret: bytes) -> bytes:
    """What was removed before stays as it is: a log is read, and recorded, again."""
    if _MARKED.fullmatch(secret):
        return secret
    return _MARK + hashlib.sha256(secret).hexdigest()[:8].encode() + b"]"


_TOO_DEEP = mark("nested too deeply")


def _searches(data: bytes) -> list[re.Pattern[bytes]]:
    """The expressions that can match in `data`, by a quick check: most of what is written has none of them.

    `_NAMED` is among them wherever the name of a secret may stand before a value, even one without a shape.
    """
    return [search for search, may_match in _RULES if may_match(data)]


def _mark_found(match: re.Match[bytes]) -> bytes:
    """The match with its secret marked. The secret is always its end."""
    secret = _secret_of(match)
    return match[0] if secret is None else match[0].removesuffix(secret) + _mark(secret)


def _secret_of(match: re.Match[bytes]) -> bytes | None:
    """The secret in a match; None if it is a mark already, or if no name before it says that it is a secret."""
    if match.re is _SHAPES:
        return match[0]
    if match.re is _NAMED and not _NAME.search(match.string, max(0, match.start() - 16), match.start()):
        return None
    return None if match[2].startswith(_MARK) else match[2]


_HINTS = {first: {then for each, then, *_ in _SHAPED if each == first} for first, *_ in _SHAPED}


def _may_have_shape(data: bytes) -> bool:
    # A search for one byte is ten times as fast as one for several.
    return any(first in data and any(map(data.__contains__, hints)) for first, hints in _HINTS.items())


def _may_have_name(data: bytes) -> bool:
    """Whether the name of a secret may stand before a value, in any spelling."""
    if not (b":" in data or b"=" in data or (b"%" in data and b"%3" in data)):
        return False
    plain = data.translate(_LOWER, _SEPARATORS)
    if any(map(plain.__contains__, _SECRET_NAMES)) and any(
        hint in plain and name.search(plain) for hint, name in _NAMES_BEFORE_VALUES
    ):
        return True
    # Its letters may be escaped.
    return (b"\\" in data and b"\\u" in data) or _KELVIN in data


def _may_have_query(data: bytes) -> bool:
    return (b"%" in data and b"%3" in data) or (b"=" in data and (b"?" in data or b"&" in data or b";" in data))


_RULES: tuple[tuple[re.Pattern[bytes], Callable[[bytes], bool]], ...] = (
    (_SHAPES, _may_have_shape),
    (_BEARER, lambda data: b"bearer" in data.lower()),
    (_USERINFO, lambda data: b"@" in data),
    (_NAMED, _may_have_name),
    (_QUERY, _may_have_query),
)
"""What is searched for, in this order, each with a quick check whether a text can have it."""


def _is_secret(key: str) -> bool:
    return key.replace("-", "").replace("_", "").replace(" ", "").lower().endswith(_SECRET_KEYS)


def _has_secret_key(value: Any) -> bool:
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if any(_is_secret(key) and _can_hide(member) for key, member in node.items()):
                return True
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
        elif isinstance(node, str) and (inner := _json_within(node)) is not None:
            stack.append(inner)
    return False


def _can_hide(value: Any) -> bool:
    """Whether a value under the name of a secret may be one. A short number is a count."""
    return bool(value) and (isinstance(value, str | list) or (isinstance(value, int) and value >= SHORTEST_NUMBER))


def _scrub(value: Any, secret: bool = False, depth: int = 0) -> Any:
    """The same value with the texts under the name of a secret (`secret`) marked, also in lists and in JSON strings.

    An object under such a name is searched, not marked: it may be the schema of a property `password`. What is nested
    too deeply is marked as a whole.
    """
    if isinstance(value, dict | list) and depth >= MAX_DEPTH:
        return _TOO_DEEP
    if isinstance(value, dict):
        return {key: _scrub(member, _is_secret(key), depth + 1) for key, member in value.items()}
    if isinstance(value, list):
        return [_scrub(member, secret, depth + 1) for member in value]
    if secret and _can_hide(value):
        return mark(str(value))
    if isinstance(value, str) and (inner := _json_within(value)) is not None and _has_secret_key(inner):
        # Texts within texts count as levels, too.
        return exact_json.dumps(_scrub(inner, depth=depth + 1)).decode()
    return value


def _json_within(text: str) -> Any:
    """The object or list that a string holds, as tool arguments do; None for any other string."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return exact_json.loads(text)
    except orjson.JSONDecodeError:
        return None
