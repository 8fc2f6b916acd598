"""Which certificate authorities the child needs: a few roots in place of the system's whole bundle.

Codex builds a new HTTP client for every turn, and each one reads and parses all certificates of the system: nearly
half of what a short turn costs. So where the bridge knows every server that the child connects to, the child gets a
file with the roots of those servers, taken out of the system's bundle: it never trusts more than before.

Codex does not report that a certificate was the reason: 0.107 to 0.169 report every failed connection in the same
words, and 0.163 and 0.169 then retry until the turn's time is over. So the bridge connects to the servers itself, with
the child's roots.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import trio

from bridge.appserver.codex_home import OPENAI, SYSTEM_CONFIG, CodexHome, write_private

CHECK_TIMEOUT = 10.0

_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # Alpine
)


_OPENAI_SERVERS = ("api.openai.com", "chatgpt.com", "auth.openai.com")
_OPENAI_DOMAINS = ("openai.com", "chatgpt.com")
_LOCAL_PROVIDERS = ("oss", "ollama", "lmstudio")
"""Codex's own providers on this machine, over plain HTTP."""

OPENAI_ROOTS = frozenset({
    # Google Trust Services; GlobalSign signs it across for old systems.
    "GTS Root R1", "GTS Root R2", "GTS Root R3", "GTS Root R4", "GlobalSign Root CA",
    # Let's Encrypt
    "ISRG Root X1", "ISRG Root X2", "ISRG Root YE", "ISRG Root YR",
    # SSL.com
    "SSL.com Root Certification Authority ECC", "SSL.com Root Certification Authority RSA",
    "SSL.com TLS ECC Root CA 2022", "SSL.com TLS RSA Root CA 2022",
    # Sectigo
    "Sectigo Public Server Authentication Root E46", "Sectigo Public Server Authentication Root R46",
    "USERTrust ECC Certification Authority", "USERTrust RSA Certification Authority",
    # DigiCert
    "DigiCert Global Root CA", "DigiCert Global Root G2", "DigiCert Global Root G3",
})  # fmt: skip
"""Common names of the roots that OpenAI's servers may use: those of the authorities that Cloudflare, which serves them,
lists for its certificates. A name is enough, because every certificate comes from the bundle that is trusted anyway.
"""

_OWN_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "CODEX_CA_CERTIFICATE")
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_IN_DOTENV = re.compile(r"^\s*(?:export\s+)?(?:SSL_CERT_\w+|CODEX_CA_\w+|\w+_PROXY)\s*=", re.IGNORECASE | re.MULTILINE)


class Server(NamedTuple):
    """A server that the child connects to over TLS."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Roots:
    """A file of roots, and the servers that it is for."""

    path: Path
    servers: frozenset[Server]


def prepare_roots(
    home: CodexHome, directory: Path, environment: Mapping[str, str], bundle: Path | None
) -> Roots | None:
    """Write the roots that this configuration needs into `directory`, unless they are there already.

    None where the child is to use the system's certificates: on other systems than Linux, where the user has chosen
    certificates or a proxy, where an administrator configures Codex, where the servers are unknown, or where there is
    no `bundle` to take them from. Raises NotReady.
    """
    if sys.platform != "linux" or leaves_certificates_alone(environment, _read(home.path / ".env")):
        return None
    # What an administrator sets there is merged with the user's own configuration.
    if any(SYSTEM_CONFIG.parent.glob("*.toml")):
        return None
    servers = tls_servers(home)
    if servers is None or bundle is None:
        return None
    path = directory / "roots.pem"
    try:
        status = bundle.stat()
        source = f"{bundle}\0{status.st_size}\0{status.st_mtime_ns}\0{sorted(servers)}\0{sorted(OPENAI_ROOTS)}"
        # OpenSSL skips what is not between the marks of a certificate.
        first_line = f"# {hashlib.sha256(source.encode()).hexdigest()}\n"
        if not _read(path).startswith(first_line):
            certificates = read_bundle(bundle)
            if servers:
                picked = [der for names, der in certificates if not OPENAI_ROOTS.isdisjoint(names)]
            else:
                # One of them, because a file without any is not a valid one.
                picked = [der for _, der in islice(certificates, 1)]
            if not picked:
                return None
            write_private(path, (first_line + "".join(map(ssl.DER_cert_to_PEM_cert, picked))).encode())
    except (OSError, ssl.SSLError):
        return None
    return Roots(path, servers)


def find_bundle() -> Path | None:
    """The file with all certificates that this system trusts."""
    usual = ssl.get_default_verify_paths().cafile
    return next((Path(name) for name in (usual, *_BUNDLES) if name and Path(name).is_file()), None)


def read_bundle(path: Path) -> Iterator[tuple[list[str], bytes]]:
    """The authorities in a bundle: their common names, and DER. Raises OSError or ssl.SSLError.

    One at a time: all of them decoded at once would cost the bridge 2 MB for the rest of its life.
    """
    for found in _CERTIFICATE.finditer(path.read_text(encoding="ascii", errors="replace")):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=found[0])
        for decoded, der in zip(context.get_ca_certs(), context.get_ca_certs(binary_form=True), strict=True):
            subject: Any = decoded.get("subject", ())
            yield [value for part in subject for name, value in part if name == "commonName"], der


async def find_untrusted(roots: Roots) -> str | None:
    """Which server presents a certificate that these roots do not verify, and why; None where none is found.

    A server that cannot be reached proves nothing.
    """
    found: list[str] = []
    async with trio.open_nursery() as nursery:
        for server in roots.servers:
            nursery.start_soon(_check, server, roots.path, found)
    return found[0] if found else None


async def _check(server: Server, roots: Path, found: list[str]) -> None:
    try:
        context = ssl.create_default_context(cafile=str(roots))
    except (OSError, ssl.SSLError) as error:
        found.append(f"the file cannot be read: {error}")
        return
    stream = None
    try:
        with trio.move_on_after(CHECK_TIMEOUT):
            stream = await trio.open_ssl_over_tcp_stream(*server, ssl_context=context)
            await stream.do_handshake()
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLCertVerificationError):
            found.append(f"{server.host}: {error.__cause__.verify_message}")
    except OSError:
        pass
    finally:
        if stream is not None:
            await trio.aclose_forcefully(stream)


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def leaves_certificates_alone(environment: Mapping[str, str], dotenv: str) -> bool:
    """Whether the user has chosen certificates or a proxy, in the environment or in Codex's `.env`.

    A proxy may present certificates of its own, and the bridge could not check them (see `find_untrusted`).
    """
    names = {*_OWN_VARIABLES, *_PROXY_VARIABLES, *(name.lower() for name in _PROXY_VARIABLES)}
    return any(environment.get(name) for name in names) or _IN_DOTENV.search(dotenv) is not None


def tls_servers(home: CodexHome) -> frozenset[Server] | None:
    """The servers that Codex reaches over TLS under this configuration.

    None: the bridge does not know them, or not which roots they need.
    """
    features = home.config.get("features")
    if home.fault is not None or (isinstance(features, dict) and features.get("respect_system_proxy")):
        return None
    providers = home.config.get("model_providers", {})
    chosen = home.provider or OPENAI
    if not isinstance(providers, dict) or chosen not in (*providers, OPENAI, *_LOCAL_PROVIDERS):
        return None
    urls = [home.config[name] for name in ("openai_base_url", "chatgpt_base_url") if name in home.config]
    for provider in providers.values():
        # A command that gets a token would inherit the child's certificates, and connect to servers unknown to us.
        if not isinstance(provider, dict) or not {"auth", "aws"}.isdisjoint(provider):
            return None
        urls.append(provider.get("base_url"))
    if home.has_login or chosen == OPENAI:
        urls.append(None)
    servers = [_servers_of(url) for url in urls]
    if None in servers:
        return None
    return frozenset(server for each in servers for server in each or ())


def _servers_of(url: object) -> list[Server] | None:
    """The servers behind a base URL; without a URL, OpenAI's. None if they are unknown."""
    if url is None:
        return [Server(host, 443) for host in _OPENAI_SERVERS]
    try:
        parts = urlsplit(str(url))
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if parts.scheme == "http" and _is_near(host):
        return []
    if parts.scheme == "https" and any(host == domain or host.endswith(f".{domain}") for domain in _OPENAI_DOMAINS):
        return [Server(host, port or 443)]
    return None


def _is_near(host: str) -> bool:
    """On this machine or in its network, so that it does not redirect to a public server over TLS."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_private
    except ValueError:
        return False
