"""URLs, origins and host names: which servers may receive a secret, and which clients may call. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

_NAME = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]"
_ORIGIN = re.compile(rf"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>{_NAME})(?::(?P<port>[0-9]{{1,5}}))?")
_HOST = re.compile(_NAME)
_SERVER = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def check_url(url: str, *, insecure_http: bool = False, remedy: str = "use https") -> str:
    """A URL without its final slash. Raises ValueError if it is malformed or would send secrets unencrypted.

    `insecure_http`: the user allows that. `remedy` says what to do otherwise.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https") or not url.isprintable() or " " in url:
        raise ValueError("write it as https://host/path")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("must not contain a user name, a query or a fragment")
    if parts.scheme == "http" and not insecure_http and not is_loopback(host):
        raise ValueError(f"plain http is only allowed for this machine; {remedy}")
    return url.rstrip("/")


def check_database_url(url: str) -> str:
    """The URL of a PostgreSQL database. Raises ValueError, without the URL: it may contain a password.

    A password with a character that has a meaning in URLs is refused: the driver would take a part of it for the name
    of a host, and print it.
    """
    _, _, rest = url.partition("://")
    server, _, database = rest.partition("/")
    if url.count("@") > 1 or "@" in database or "#" in url or not url.isprintable() or " " in url:
        raise ValueError("write special characters of the user and the password as %XX, such as %40 for @")
    # Several servers may be given, separated by commas.
    if not database or not all(_SERVER.fullmatch(each) for each in server.rpartition("@")[2].split(",")):
        raise ValueError("write it as postgresql://USER:PASSWORD@HOST/DATABASE")
    return url


@dataclass(frozen=True, slots=True)
class SharedServer:
    """A Valkey or Redis server."""

    host: str
    port: int
    is_encrypted: bool
    user: str | None
    password: str | None = field(repr=False)
    database: int


_SHARED = re.compile(
    r"(?P<scheme>valkeys?|rediss?)://(?:(?P<user>[^:@/?#]*)(?::(?P<password>[^:@/?#]*))?@)?"
    r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?:/(?P<database>[0-9]{0,4}))?"
)


def parse_shared_server(url: str) -> SharedServer:
    """The server of a URL. Raises ValueError, without the URL: it may contain a password."""
    found = _SHARED.fullmatch(url)
    if found is None or not url.isprintable() or " " in url or not 0 < int(found["port"] or 6379) < 65536:
        raise ValueError(
            "write it as valkey://USER:PASSWORD@HOST:PORT/DATABASE (or redis://; with TLS valkeys:// or rediss://), "
            "with special characters of the password as %XX, such as %40 for @"
        )
    user, password = (unquote(found[each]) if found[each] else None for each in ("user", "password"))
    host, port = found["host"].strip("[]"), int(found["port"] or 6379)
    return SharedServer(
        host, port, found["scheme"] in ("valkeys", "rediss"), user, password, int(found["database"] or 0)
    )


def password_in(url: str) -> str | None:
    """The password in a URL, as it is meant."""
    password = urlsplit(url).password
    return None if password is None else unquote(password)


def api_base(url: str, *, insecure_http: bool = False) -> str:
    """The base URL of a bridge's API, given with or without its /v1. Raises ValueError, as `check_url` does."""
    checked = check_url(url, insecure_http=insecure_http, remedy="use https, or add --insecure-http")
    return checked if checked.count("/") > 2 else f"{checked}/v1"


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def leads_here(url: str) -> bool:
    """Whether a URL points to this machine."""
    return is_loopback(urlsplit(url).hostname or "")


def is_header_safe(text: str) -> bool:
    """Whether a key or token can be sent in a header: visible ASCII, and not empty."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def parse_origin(text: str) -> str:
    """An origin as a browser writes it: lower case, without a final slash or the scheme's default port."""
    if "*" in text:
        raise ValueError("* would allow every web page; name each origin")
    if text.lower() == "null":
        raise ValueError("null is the origin of a sandboxed frame of any site; name each origin")
    found = _ORIGIN.fullmatch(text.lower().removesuffix("/"))
    if found is None or int(found["port"] or 0) > 65535:
        raise ValueError(f"{text[:80]!r} is not an origin; write scheme://host or scheme://host:port, or none alone")
    scheme, host, port = found["scheme"], found["host"], int(found["port"] or 0)
    return f"{scheme}://{host}" + ("" if port in (0, _DEFAULT_PORTS.get(scheme)) else f":{port}")


def parse_host(text: str) -> str:
    """A host name or address as in a Host header: lower case, without a port or a final dot."""
    host = text.lower().removesuffix(".")
    if "*" in host:
        raise ValueError("* would allow every name; name each host")
    if _HOST.fullmatch(host) is None:
        raise ValueError(f"{text[:80]!r} is not a host; write a name or an address without scheme and port")
    return host
