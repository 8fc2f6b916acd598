"""`turnbridge log serve`: the live page over a recording, read-only, for this machine alone."""

from __future__ import annotations

from collections.abc import Callable

import trio

from bridge.app.keys import Keyring
from bridge.http.listener import Listener
from bridge.http.sockets import open_sockets
from bridge.http.wire import Edge
from bridge.log.log import Log
from bridge.page.live import Watchers
from bridge.page.sessions import Sessions
from bridge.page.site import MAX_SMALL_BODY, Site, routes_of
from bridge.page.turns import Turns
from bridge.server.dispatch import Routes
from bridge.server.gate import Gate
from bridge.server.process import stop_on_signals

HOST = "127.0.0.1"
WRITE_SECONDS = 60.0
FLUSH = 2.0
"""Seconds that answers have to end after a signal."""


async def serve_recording(log: Log, port: int, announce: Callable[[str], None]) -> None:
    """Serve a log until a signal. `announce` prints the address. Raises ConfigError if it cannot."""
    sockets = open_sockets(HOST, port)
    port = sockets[0].getsockname()[1]
    keyring = Keyring(())
    sessions, watchers = Sessions(keyring, port, secure=False), Watchers()
    site = Site(Turns(None, log.path, log.cache), sessions, watchers, log.path.name, live=False)
    gate = Gate(Routes(routes_of(site, MAX_SMALL_BODY), {}), keys=keyring, check_host=True, sessions=sessions)
    async with stop_on_signals(lambda: None) as stop, trio.open_nursery() as connections:
        listener = Listener(Edge(gate, write_timeout=WRITE_SECONDS), sockets)
        connections.start_soon(listener.run, connections)
        announce(f"page at http://{HOST}:{port}/#token={sessions.new_token()} (once, within ten minutes)")
        await stop.asked.wait()
        watchers.end()
        listener.stop_accepting()
        with trio.move_on_after(FLUSH):
            await listener.wait_closed()
        listener.abort()
        connections.cancel_scope.cancel()
