"""Secrets out, before anything is written: by the name of the member, and by the shape of the value. Pure.

What is removed leaves a short hash, so that equal secrets stay equal and matching still works.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import orjson

from bridge import exact_json

POLICY = "keys+shapes/1"
SHORTEST_KEY = 8
"""A key of our own that is shorter is not looked for: it would match everywhere and protect nothing."""
SHORTEST_NUMBER = 10_000_000
"""A number under a secret's name (`"password": 31415926`) that is smaller is a count, a size or a time limit."""

_SECRET_KEYS = (
    "authorization", "apikey", "apikeys", "providerkey", "token", "secret", "secretkey", "password", "passwords",
    "passwd", "passphrase", "cookie", "accesskey", "privatekey", "jwt", "credential", "credentials",
)  # fmt: skip
"""Endings of names, compared without case and separators: `ANTHROPIC_API_KEY`, `x-provider-key`, `refresh_token`."""

_ESCAPED = rb"(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9a-fA-F]{2})|(?<=%25[0-9a-fA-F]{2})"
_START = rb"(?:(?<![A-Za-z0-9_])|" + _ESCAPED + rb")"
"""A secret begins a word; the letter before it may belong to an escape, of JSON (`\\n`) or of a URL (`%3D`)."""
_STRICT_START = rb"(?:(?<![A-Za-z0-9_-])|" + _ESCAPED + rb")"
"""No dash before it either: then a run of such letters has one start, and however long it is, it is read once."""


def _shape(beginning: bytes, rest: bytes, start: bytes = _START) -> bytes:
    # The letters first, and then whether they begin a word: so the regex engine skips all that begins with others.
    return beginning + rb"(?<=" + start + beginning + rb")" + rest


_SHAPES = re.compile(
    b"|".join(
        [
            *(_shape(kind, rb"[A-Za-z0-9_-]{16,}") for kind in (b"sk-", b"rk-", b"pk-")),  # provider keys
            _shape(b"cb-", rb"[A-Za-z0-9_-]{24,}"),  # our own keys
            _shape(b"eyJ", rb"[A-Za-z0-9_-]{8,512}+\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),  # JWT
            _shape(b"eyJ", rb"[A-Za-z0-9_-]{513,}+\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?", _STRICT_START),
            _shape(b"gsk_", rb"[A-Za-z0-9]{20,}"),  # Groq
            *(_shape(kind, rb"[A-Za-z0-9]{20,}") for kind in (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_")),
            _shape(b"github_pat_", rb"[A-Za-z0-9_]{20,}"),
            _shape(b"AIza", rb"[A-Za-z0-9_-]{30,}"),
            *(_shape(kind, rb"[A-Za-z0-9-]{10,}") for kind in (b"xoxa-", b"xoxb-", b"xoxp-", b"xoxr-", b"xoxs-")),
        ]
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
"""A long word behind a name that tells what it is. Looked for by what stands between them, which is rare."""
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
"""Where the provider is, and what lies where on this machine, is the operator's business."""

MAX_DEPTH = 128
"""Levels within a text that are looked into for the names of secrets; orjson writes no more than 254."""
_MARK = b"[redacted:"
_MARKED = re.compile(rb"\[redacted:[0-9a-f]{8}\]")

_TEXT_DELTAS = (b'{"type":"response.output_text.delta"', b'{"op":"delta"')
_GITHUB = (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_")
_KEY_HINTS = (b"auth", b"key", b"token", b"secret", b"passw", b"passphrase", b"cookie", b"jwt", b"credential")


class Redactor:
    """Removes secrets from bytes of JSON. `known` are secrets of our own (API keys), removed wherever they stand.

    One that has fewer characters than `shortest` is not looked for.
    """

    def __init__(self, known: tuple[str, ...] = (), *, shortest: int = SHORTEST_KEY) -> None:
        self._shortest = shortest
        self._known: list[bytes] = []
        self.learn(known)
        self.removed = 0
        """How many secrets have been removed so far."""

    def learn(self, known: Iterable[str]) -> None:
        """Remove these too from now on."""
        forms = {form for secret in known if len(secret) >= self._shortest for form in _forms(secret)}
        # The longest first: one may hold another.
        self._known = sorted(forms.union(self._known), key=lambda form: (-len(form), form))

    def suspicious(self, data: bytes) -> bool:
        """A quick look: False means that no value in `data` has the shape of a secret."""
        return any(secret in data for secret in self._known) or any(
            search is _SHAPES or search.search(data) for search in _searches(data)
        )

    def json(self, data: bytes) -> bytes:
        """A JSON text with its secrets removed, by name and by shape; still the same JSON otherwise."""
        lowered = data.lower()
        if any(hint in lowered for hint in _KEY_HINTS):
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
        lines = chunk.split(b"\n")
        rest = []
        for index, line in enumerate(lines):
            data = line.removeprefix(b"data: ")
            # A text delta has no names but ours. There may be thousands, which hold nothing to look for.
            if data.startswith(b"{") and not data.startswith(_TEXT_DELTAS):
                lines[index] = line[: len(line) - len(data)] + self.json(data)
            else:
                rest.append(index)
        together = b"\n".join([lines[index] for index in rest])
        if (cleaned := self.text(together)) != together:
            for index, line in zip(rest, cleaned.split(b"\n"), strict=True):
                lines[index] = line
        return b"\n".join(lines)

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
        """Any text without our own secrets, and with all the rest. No hash is left: others than we read it."""
        for secret in self._known:
            data = data.replace(secret, b"[redacted]")
        return data


def harmless(text: str) -> str:
    """What a provider or a child says of its failure, without places and without the keys that some repeat."""
    told = _PATH.sub("[path]", _URL.sub("", text))
    return Redactor().text(told.encode("utf-8", "replace")).decode("utf-8", "replace")


def _forms(secret: str) -> tuple[bytes, ...]:
    """A secret as it is, and as it stands in JSON (where some escape slashes, too) and in JSON within JSON."""
    once = orjson.dumps(secret)[1:-1]
    return secret.encode(), once, once.replace(b"/", b"\\/"), orjson.dumps(once.decode())[1:-1]


def _mark(secret: bytes) -> bytes:
    """What stands where a secret was. What was removed before stays as it is: a log is read, and recorded, again."""
    if _MARKED.fullmatch(secret):
        return secret
    return _MARK + hashlib.sha256(secret).hexdigest()[:8].encode() + b"]"


_TOO_DEEP = _mark(b"nested too deeply").decode()


def _searches(data: bytes) -> list[re.Pattern[bytes]]:
    """What to look for in `data`, by a quick look; most of what is written holds nothing of the kind."""
    found = []
    # One by one, and not in a loop: this is done for all that is written.
    if (
        b"k-" in data
        or b"cb-" in data
        or b"eyJ" in data
        or b"AIza" in data
        or b"xox" in data
        or b"_pat_" in data
        or b"gsk_" in data
        or (b"gh" in data and any(hint in data for hint in _GITHUB))
    ):
        found.append(_SHAPES)
    lowered = data.lower()
    if b"bearer" in lowered:
        found.append(_BEARER)
    if b"@" in data:
        found.append(_USERINFO)
    escaped = b"%3" in data
    if (escaped or b":" in data or b"=" in data) and (
        b"token" in lowered
        or b"secret" in lowered
        or b"passw" in lowered
        or b"passphrase" in lowered
        or b"key" in lowered
    ):
        found.append(_NAMED)
    if escaped or (b"=" in data and (b"?" in data or b"&" in data or b";" in data)):
        found.append(_QUERY)
    return found


def _mark_found(found: re.Match[bytes]) -> bytes:
    """A secret's mark, behind what has told of it."""
    if found.re is _SHAPES:
        return _mark(found[0])
    if found.re is _NAMED and not _NAME.search(found.string, max(0, found.start() - 16), found.start()):
        return found[0]
    return bytes(found[1] + (found[2] if found[2].startswith(_MARK) else _mark(found[2])))


def _is_secret(key: str) -> bool:
    return re.sub(r"[-_ ]", "", key).lower().endswith(_SECRET_KEYS)


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
    """Whether what stands under a secret's name may be one. A short number is a count."""
    return bool(value) and (isinstance(value, str | list) or (isinstance(value, int) and value >= SHORTEST_NUMBER))


def _scrub(value: Any, secret: bool = False, depth: int = 0) -> Any:
    """The same value with the texts under a secret's name (`secret`) marked, in lists and in JSON strings too.

    An object under such a name is looked into, not marked: it may be the schema of a property `password`. What is
    nested deeper than anybody would write it is marked as a whole.
    """
    if isinstance(value, dict | list) and depth >= MAX_DEPTH:
        return _TOO_DEEP
    if isinstance(value, dict):
        return {key: _scrub(member, _is_secret(key), depth + 1) for key, member in value.items()}
    if isinstance(value, list):
        return [_scrub(member, secret, depth + 1) for member in value]
    if secret and _can_hide(value):
        return _mark(str(value).encode()).decode()
    if isinstance(value, str) and (inner := _json_within(value)) is not None and _has_secret_key(inner):
        # The depth goes on: texts within texts are levels too.
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
