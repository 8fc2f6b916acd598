"""CAP's part of the application. It is loaded when somebody asks for it: its models are large, and few speak it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from bridge.http.request import Request
from bridge.server.http import Page, PageRequest
from bridge.server.service import Service

if TYPE_CHECKING:
    from bridge.server.cap.endpoint import AssistEndpoint


class CapApp:
    """What is served at CAP's places, as in `AssistEndpoint` and `AssistSocket`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @cached_property
    def endpoint(self) -> AssistEndpoint:
        """The one that serves them all."""
        from bridge.server.cap.endpoint import AssistEndpoint

        return AssistEndpoint(self._service)

    async def post(self, request: Request) -> None:
        """POST /v1/assist."""
        await self.endpoint.post(request)

    async def resume(self, request: Request) -> None:
        """GET /v1/assist/{request_id}."""
        await self.endpoint.resume(request)

    async def cancel(self, request: PageRequest) -> Page:
        """DELETE /v1/assist/{request_id}."""
        return await self.endpoint.cancel(request)


class CapSocket:
    """The WebSocket /v1/assist/ws."""

    def __init__(self, app: CapApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, request: Request) -> None:
        from bridge.server.cap.socket import AssistSocket

        await AssistSocket(self._service, self._app.endpoint)(request)
