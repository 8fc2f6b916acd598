"""How a request is framed: its head, and the chunks of its body. No I/O.

Everything that two servers could read differently is refused, because a proxy in front of the bridge may read it the
other way, and then part of one client's body becomes another client's request (request smuggling, RFC 9112 §11.2).
That is stricter than h11 and llhttp, which both accept some of it for the sake of old clients.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

HEAD_LIMIT = 64 * 1024
"""Limit in bytes of a request's head, of the trailers of a body, and of what may wait behind a request."""
END = b"\r\n\r\n"

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_VALUE = rb"[\t\x20-\x7e\x80-\xff]*"
_HEAD = re.compile(
    rb"(%b) ([!-~]+) HTTP/([0-9])\.([0-9])\r\n((?:%b:%b\r\n)*)\r\n" % (_TOKEN, _TOKEN, _VALUE),
)
_FIELD = re.compile(rb"(%b):(%b)\r\n" % (_TOKEN, _VALUE))
_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_FOLD = re.compile(rb"\r\n[ \t]")
_NOT_A_METHOD = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
_WEBSOCKET_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
_LF = ord("\n")

MALFORMED = "Malformed HTTP/1.1 request."


class BadRequest(Exception):
    """The bytes are not a supported request. `message` repeats none of them: they may contain a key."""

    def __init__(self, message: str = MALFORMED, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


TOO_LONG = f"The head of a request must not exceed {HEAD_LIMIT:,} bytes."


@dataclass(slots=True)
class Head:
    """The head of a request, checked."""

    method: str
    path: str
    query: bytes
    version: bytes
    """1.0 or 1.1."""
    headers: list[tuple[bytes, bytes]]
    """Names are in lower case. Where the target is a whole URL, `host` is the URL's."""
    length: int = 0
    is_chunked: bool = False
    keeps_alive: bool = True
    expects_continue: bool = False
    is_websocket: bool = False


def fault_of_head(received: bytes, seen: int = 0) -> str | None:
    """What is wrong with as much of a head as has been received (with or without a body behind it); None if nothing.

    The first `seen` bytes were checked before, so that a head that comes byte by byte is not read over and over.
    """
    end = received.find(END, max(0, seen - len(END)))
    start = max(0, seen - 2)
    while start and received[start] == _LF:
        start -= 1  # never between a CR and its LF
    head = received[start:] if end < 0 else received[start : end + len(END)]
    if _BARE_LINE_END.search(head):
        return "Lines of a request must end with CR LF."
    if _FOLD.search(head):
        return "Folded header lines are not accepted."
    return None


def check_part_of_head(received: bytes, seen: int) -> None:
    """Raises BadRequest as soon as the part of a head that has been received is wrong; see `fault_of_head`."""
    if (fault := fault_of_head(received, seen)) is not None:
        raise BadRequest(fault)
    if not seen and _NOT_A_METHOD.match(received):
        raise BadRequest  # TLS, or another protocol: answer at once


def parse_head(raw: bytes) -> Head:
    """The head in these bytes, which end with the empty line. Raises BadRequest."""
    found = _HEAD.fullmatch(raw)
    if found is None:
        raise BadRequest(fault_of_head(raw) or MALFORMED)
    method, target, major, minor, fields = found.groups()
    if major != b"1" or minor not in b"01":
        raise BadRequest("Only HTTP/1.1 and HTTP/1.0 are supported.", 505)
    headers = [(name.lower(), value.strip(b" \t")) for name, value in _FIELD.findall(fields)]
    given: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _SINGLE and name in given:
            raise BadRequest(f"The header {name.decode()} must not be repeated.")
        given[name] = given[name] + b"," + value if name in given else value
    version = b"1." + minor
    if version == b"1.1" and b"host" not in given:
        raise BadRequest("An HTTP/1.1 request needs a Host header.")
    host, path, query = _split(target)
    if host is not None:
        headers = [(b"host", host), *(each for each in headers if each[0] != b"host")]
    head = Head(method.decode(), path, query, version, headers)
    _read_framing(head, given)
    return head


_SINGLE = frozenset({b"host", b"content-length", b"transfer-encoding"})


def _split(target: bytes) -> tuple[bytes | None, str, bytes]:
    """(host of a target that is a whole URL, path, query).

    That host counts, whatever the header says (RFC 9112 §3.2.2), and is checked where every Host is.
    """
    host = None
    if not target.startswith(b"/") and (found := _ABSOLUTE.fullmatch(target)) is not None:
        host, target = found.groups()
        target = target if target.startswith(b"/") else b"/" + target
    raw_path, _, query = target.partition(b"?")
    path = raw_path.decode("ascii")
    return host, unquote(path) if "%" in path else path, query


def _read_framing(head: Head, given: dict[bytes, bytes]) -> None:
    """Where the body ends, and what comes after it."""
    length, coding = given.get(b"content-length"), given.get(b"transfer-encoding")
    if length is not None:
        if coding is not None:
            raise BadRequest("A request must have either Content-Length or Transfer-Encoding, not both.")
        if _LENGTH.fullmatch(length) is None:
            raise BadRequest("Content-Length must be a decimal number.")
        head.length = int(length)
    elif coding is not None:
        if coding.lower() != b"chunked":
            raise BadRequest("The only Transfer-Encoding that is supported is chunked.", 501)
        if head.version == b"1.0":
            raise BadRequest("HTTP/1.0 has no Transfer-Encoding.")
        head.is_chunked = True
    if b"connection" in given or head.version == b"1.0":
        tokens = {each.strip(b" \t") for each in given.get(b"connection", b"").lower().split(b",")}
        head.keeps_alive = head.version == b"1.1" and b"close" not in tokens
        if given.get(b"upgrade", b"").lower() == b"websocket" and head.method == "GET":
            _check_handshake(head, given, tokens)
            head.is_websocket = True
    if b"expect" in given:
        head.expects_continue = head.version == b"1.1" and given[b"expect"].lower() == b"100-continue"


def _check_handshake(head: Head, given: dict[bytes, bytes], tokens: set[bytes]) -> None:
    is_good = (
        head.version == b"1.1"
        and b"upgrade" in tokens
        and given.get(b"sec-websocket-version") == b"13"
        and _WEBSOCKET_KEY.fullmatch(given.get(b"sec-websocket-key", b"")) is not None
        and given.get(b"sec-websocket-protocol", b"").isascii()
        and not head.length
        and not head.is_chunked
    )
    if not is_good:
        raise BadRequest("Invalid WebSocket handshake. RFC 6455, version 13, is supported.")


class Chunks:
    """A chunked body. `feed` takes bytes as they come, until `done`."""

    __slots__ = ("_left", "_pending", "_trailers", "done")

    _SIZE = re.compile(rb"([0-9a-fA-F]{1,15})(?:;[\t\x20-\x7e]*)?\r\n")
    _LONGEST_SIZE = 256
    """Bytes of the line that tells a chunk's size. What else it says is ignored, as RFC 9112 §7.1.1 demands."""

    def __init__(self) -> None:
        self._pending = b""
        self._left = 0
        """Bytes to come of a chunk and its line end; 0 before a size, -1 in the trailers."""
        self._trailers = 0
        self.done = False

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """(pieces of the body, what follows its end). Raises BadRequest."""
        data, self._pending = self._pending + data, b""
        pieces: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.done:
            if self._left > 2:
                piece = data[at : at + self._left - 2]
                pieces.append(piece)
                self._left -= len(piece)
                at += len(piece)
                continue
            end = self._after_line(data, at)
            if end is None:
                break
            at = end
        self._pending = b"" if self.done else data[at:]
        return pieces, data[at:] if self.done else b""

    def _after_line(self, data: bytes, at: int) -> int | None:
        """Where the line ends that begins here: a size, the end of a chunk, or a trailer; None for a part of one."""
        if self._left > 0:
            if not b"\r\n".startswith(data[at : at + 2]):
                raise BadRequest("A chunk must end with CR LF.")
            if len(data) < at + 2:
                return None
            self._left = 0
            return at + 2
        pattern, longest = (self._SIZE, self._LONGEST_SIZE) if self._left == 0 else (_TRAILER, HEAD_LIMIT)
        found = pattern.match(data, at)
        if found is None:
            end = data.find(b"\n", at)
            if end >= 0 or len(data) - at > longest:
                raise BadRequest("Malformed chunk.")
            return None
        if self._left == 0:
            self._left = int(found[1], 16) + 2
            if self._left == 2:
                self._left = -1
        else:
            self._trailers += len(found[0])
            if self._trailers > HEAD_LIMIT:
                raise BadRequest(TOO_LONG, 431)
            if (found[1] or b"").lower() in _SINGLE:
                raise BadRequest("Trailers must not say how the request is framed (RFC 9110 §6.5.1).")
            self.done = found[0] == b"\r\n"
        return found.end()


_TRAILER = re.compile(rb"(?:(%b):%b)?\r\n" % (_TOKEN, _VALUE))
