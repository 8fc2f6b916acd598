"""What a client gets that comes when all connections are taken."""

from __future__ import annotations

import orjson
import trio

from bridge.errors import Overloaded

MAX_TURNED_AWAY = 64
"""Clients that are being told so at the same time; more than that are told nothing."""
SECONDS = 2.0

_BODY = orjson.dumps(
    Overloaded("All connections of the bridge are taken (PROXY_MAX_CONNECTIONS); try again in a moment.").body()
)
ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 2\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n" % len(_BODY)
) + _BODY


async def turn_away(stream: trio.SocketStream) -> None:
    """Say 503 and close the connection, in two seconds at most, whatever the client does."""
    with trio.move_on_after(SECONDS):
        try:
            # One that is closed with unread bytes is reset, and the client never sees why.
            await stream.receive_some()
            await stream.send_all(ANSWER)
            await stream.send_eof()
            while await stream.receive_some():
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
    await trio.aclose_forcefully(stream)
