"""CAP's part of the application. It is loaded when somebody asks for it: its models are large, and few speak it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from bridge.server.http import Page, Receive, Request, Scope, Send
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

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/assist."""
        await self.endpoint.post(scope, receive, send)

    async def resume(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/assist/{request_id}."""
        await self.endpoint.resume(scope, receive, send)

    async def cancel(self, request: Request) -> Page:
        """DELETE /v1/assist/{request_id}."""
        return await self.endpoint.cancel(request)


class CapSocket:
    """The WebSocket /v1/assist/ws."""

    def __init__(self, app: CapApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from bridge.server.cap.socket import AssistSocket

        await AssistSocket(self._service, self._app.endpoint)(scope, receive, send)
