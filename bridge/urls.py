"""Other servers: which of them may be given a secret, and what may be sent to them. Pure."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def check_url(url: str, *, insecure_http: bool = False, remedy: str = "use https") -> str:
    """A URL without its last slash. Raises ValueError for one that is none, or would send secrets in the clear.

    `insecure_http`: the user wants them to be sent so. `remedy` is what to do otherwise.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https") or not url.isprintable() or " " in url:
        raise ValueError("write it as https://host/path")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("a user name, a query or a fragment does not belong in it")
    if parts.scheme == "http" and not insecure_http and not is_loopback(host):
        raise ValueError(f"plain http is for this machine alone; {remedy}")
    return url.rstrip("/")


def api_base(url: str, *, insecure_http: bool = False) -> str:
    """The base URL of a bridge's API, given with or without its /v1. Raises ValueError, as `check_url` does."""
    checked = check_url(url, insecure_http=insecure_http, remedy="use https, or add --insecure-http")
    return checked if checked.count("/") > 2 else f"{checked}/v1"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def leads_here(url: str) -> bool:
    """Whether a URL leads to this machine itself."""
    return is_loopback(urlsplit(url).hostname or "")


def is_header_safe(text: str) -> bool:
    """Whether a key or a token can stand in a header: visible ASCII, and something."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
