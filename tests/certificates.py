"""Certificate authorities and server certificates for tests, made with openssl."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority with a name of its own."""

    certificate: Path
    key: Path

    def server(self, host: str) -> ssl.SSLContext:
        """What a server needs that this authority vouches for as `host`."""
        key, request, signed = (self.key.with_name(f"{host}-{what}.pem") for what in ("key", "request", "signed"))
        _openssl(f"req -newkey rsa:2048 -nodes -keyout {key} -out {request}", "-subj", f"/CN={host}")
        extensions = self.key.with_name(f"{host}.ext")
        extensions.write_text(f"subjectAltName = {'IP' if host[0].isdigit() else 'DNS'}:{host}\n")
        authority = f"-CA {self.certificate} -CAkey {self.key} -CAcreateserial"
        _openssl(f"x509 -req -days 2 -in {request} {authority} -extfile {extensions} -out {signed}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(signed, key)
        return context


def make_authority(directory: Path, name: str) -> Authority:
    """An authority with this common name, in a directory of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    made = Authority(directory / "authority.pem", directory / "authority-key.pem")
    usage = "-addext", "keyUsage=critical,keyCertSign,cRLSign"
    begun = f"req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {made.key} -out {made.certificate}"
    _openssl(begun, "-subj", f"/CN={name}", *usage)
    return made


def _openssl(words: str, *more: str) -> None:
    subprocess.run(["openssl", *words.split(), *more], check=True, capture_output=True)
