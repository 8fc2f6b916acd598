"""An HTTP proxy that leads https hosts of the internet to servers on this machine, with a certificate of its own."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import trio
from upstream.serving import served_in_thread


class TlsProxy:
    """Answers CONNECT. `hosts` maps the name of a host to the base URL that it stands for; others get 502."""

    def __init__(self, directory: Path, hosts: Mapping[str, str]) -> None:
        self.url = ""
        self.connected: list[str] = []
        """The `host:port` of every CONNECT."""
        self._hosts = hosts
        key, self._certificate = directory / "proxy-key.pem", directory / "proxy-certificate.pem"
        made = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=proxy -keyout {key} -out {self._certificate}"
        names = ",".join(f"DNS:{host}" for host in hosts)
        subprocess.run(
            ["openssl", *made.split(), "-addext", f"subjectAltName={names}"], check=True, capture_output=True
        )
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self._certificate, key)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send a program through it."""
        return {"HTTPS_PROXY": self.url, "SSL_CERT_FILE": str(self._certificate)}

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._serve, [listener])
            task_status.started()

    async def _serve(self, stream: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some()
        target = head.split()[1].decode()
        self.connected.append(target)
        url = self._hosts.get(target.rpartition(":")[0])
        if url is None:
            await stream.send_all(b"HTTP/1.1 502 Unknown host\r\ncontent-length: 0\r\n\r\n")
            return
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
        parts = urlsplit(url)
        server = await trio.open_tcp_stream(str(parts.hostname), parts.port or 80)
        secure = trio.SSLStream(stream, self._context, server_side=True, https_compatible=True)
        with suppress(trio.BrokenResourceError):
            async with secure, server, trio.open_nursery() as nursery:
                nursery.start_soon(_copy, secure, server, nursery.cancel_scope)
                nursery.start_soon(_copy, server, secure, nursery.cancel_scope)


async def _copy(source: trio.abc.ReceiveStream, target: trio.abc.SendStream, scope: trio.CancelScope) -> None:
    """Until one side is at its end; then the connection is over."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for chunk in source:
            await target.send_all(chunk)
    scope.cancel()


@contextmanager
def tls_proxy(directory: Path, hosts: Mapping[str, str]) -> Iterator[TlsProxy]:
    """A proxy in a thread of its own."""
    with served_in_thread(TlsProxy(directory, hosts), "tls proxy") as proxy:
        yield proxy
