"""Who answers the requests of a run: this process, as the server would, or a bridge that runs already."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from bridge.api.cap.envelope import ServiceRequest
from bridge.api.dropped import HEADER
from bridge.cli.cap.options import Options
from bridge.cli.streams import say
from bridge.errors import BridgeError, UpstreamError

if TYPE_CHECKING:
    from bridge.config import Settings
    from bridge.config_file import FileConfig
    from bridge.server.service import Service

Write = Callable[[list[bytes]], Awaitable[None]]
"""Takes packets."""
Answer = Callable[[ServiceRequest, dict[str, Any], Write], Awaitable[str | None]]
"""Writes the packets of one request, which was read from the object; what it failed of, when the packets tell of that.

Raises BridgeError for a failure before the first packet.
"""


def open_answer(options: Options) -> AbstractAsyncContextManager[Answer]:
    """Whoever answers, started for the run and stopped after it. Entering raises BridgeError when it cannot start."""
    from bridge.config_file import load_configuration

    settings, config = load_configuration(
        config=options.config,
        codex_bin=options.codex_bin,
        codex_home=options.codex_home,
        native_tools=options.native_tools or None,
        mock_only=options.mock or None,
        cap_model=options.default_model,
    )
    return _here(options, settings, config) if options.url is None else _elsewhere(options, settings)


@asynccontextmanager
async def _here(options: Options, settings: Settings, config: FileConfig) -> AsyncIterator[Answer]:
    from bridge.backends.setup import check_codex, prepare_workdir
    from bridge.server.run import Bridge

    if not settings.mock_only:
        check_codex(settings)
        prepare_workdir(settings.workdir)
    own = {"store": "memory", "replay": None, "log_events": options.log_events}
    bridge = Bridge(settings.model_copy(update=own), (), config)
    async with bridge.working() as service:
        yield _Here(service, options.provider_key)
    if bridge.log is not None:
        bridge.log.check()


class _Here:
    """Answers as the server does, for one client that reads everything."""

    def __init__(self, service: Service, provider_key: str | None) -> None:
        self._service = service
        self._provider_key = provider_key
        self._busy: set[tuple[str, str]] = set()

    async def __call__(self, request: ServiceRequest, data: dict[str, Any], write: Write) -> str | None:
        from bridge.server.cap.exchange import AssistExchange
        from bridge.server.cap.live import LiveAssist
        from bridge.server.cap.places import RUN

        exchange = AssistExchange(self._service, "", RUN, request, data, "ndjson", self._busy)
        exchange.provider_key = self._provider_key
        exchange.arrived({"body": data, "form": "ndjson"})
        live = LiveAssist(exchange, grace=math.inf)
        reader = live.read()
        failed: BridgeError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.run)
            # Not through the nursery: it would make a group of it.
            try:
                await live.begun()
                if (names := dict(exchange.headers).get(HEADER)) is not None:
                    say("warning", f"left out: {names.decode()}")
                while not reader.done:
                    await write((await reader.next())[0])
            except BridgeError as error:
                failed = error
                nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        return None if exchange.failure is None else exchange.failure.message


@asynccontextmanager
async def _elsewhere(options: Options, settings: Settings) -> AsyncIterator[Answer]:
    from bridge.api.cap.client import AssistFailed, CapClient, ClientError
    from bridge.api.cap.stream import error as error_packet
    from bridge.api.cap.writers import CLOSE_PACKET
    from bridge.cli.exec.backends import bridge_key
    from bridge.cli.exec.choice import Choice
    from bridge.cli.exec.options import Options as ExecOptions
    from bridge.cli.exec.options import base_url

    assert options.url is not None
    where = ExecOptions(url=options.url, insecure_http=options.insecure_http, provider_key=options.provider_key)
    key = bridge_key(where, Choice("url", settings))
    url = base_url(options.url, insecure_http=options.insecure_http)

    def tell(error: ClientError, pause: float) -> None:
        say("warning", f"{error} Trying again in {pause:g} s.")

    async with CapClient(url, key, insecure_http=options.insecure_http, on_retry=tell) as client:

        async def answer(request: ServiceRequest, data: dict[str, Any], write: Write) -> str | None:
            try:
                async with client.stream(request) as stream:
                    async for packet in stream:
                        await write([packet.to_json().encode()])
            except AssistFailed as failed:
                await write([error_packet(failed.error).to_json().encode(), CLOSE_PACKET])
                return failed.error.message
            except ClientError as error:
                told = f"{error} Does --url lead to a bridge that runs? `codex-bridge serve` starts one."
                raise UpstreamError(told, code="upstream_unreachable", severity="transient") from None
            return None

        yield answer
