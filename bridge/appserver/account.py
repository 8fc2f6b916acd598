"""What the child tells of its account: the models, the login, the quota; asked for again when it may have changed."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import trio

from bridge.appserver.dialect import ChildInfo
from bridge.appserver.handshake import AskChild, Login, ask_login, ask_models
from bridge.errors import BridgeError

RATE_LIMITS = "account/rateLimits/updated"
_CHANGES = ("account/updated", "account/login/completed")

MODELS_AGE = 600.0
"""How often the models and the login are asked for again."""


class Account:
    """Known after `begin`; `notice` takes the child's notifications, `stay_informed` is a task."""

    def __init__(self, call: AskChild) -> None:
        self.models: list[dict[str, Any]] = []
        self.login: Login | None = None
        """None where it cannot be known."""
        self.rate_limits: dict[str, Any] = {}
        """What the child has told of the account's quota; empty before it has."""
        self._call = call
        self._info: ChildInfo | None = None
        self._news = trio.Event()
        self._login_asked = -math.inf

    async def begin(self, info: ChildInfo) -> None:
        """Ask for the first time, after the handshake."""
        self.models = await ask_models(self._call, info)
        self.login = await ask_login(self._call, info)
        self._info = info

    def notice(self, method: str, params: dict[str, Any]) -> None:
        """Take in what the child says by itself."""
        if method == RATE_LIMITS:
            self._learn_limits(params.get("rateLimits"))
        elif method in _CHANGES:
            self._news.set()

    async def stay_informed(self) -> None:
        """Ask again, now and then and when the account has changed."""
        while True:
            with trio.move_on_after(MODELS_AGE):
                await self._news.wait()
            self._news = trio.Event()
            if self._info is not None:
                with suppress(BridgeError):
                    self.models = await ask_models(self._call, self._info) or self.models
                    self.login = await ask_login(self._call, self._info)

    async def check_login(self) -> Login | None:
        """The login as it is now: where it was missing the child is asked again, at most once a second."""
        assert self._info is not None
        now = trio.current_time()
        if self.login == "missing" and now >= self._login_asked + 1:
            self._login_asked = now
            self.login = await ask_login(self._call, self._info)
        return self.login

    async def read_rate_limits(self) -> dict[str, Any]:
        """The quota as it is now, where the child can tell; else what it told last."""
        if self._info is not None and "account/rateLimits/read" in self._info.methods:
            with suppress(BridgeError):
                result = await self._call("account/rateLimits/read", None)
                self._learn_limits(result.get("rateLimits") if isinstance(result, dict) else None)
        return self.rate_limits

    def _learn_limits(self, limits: Any) -> None:
        """An update may leave out what has not changed."""
        if isinstance(limits, dict):
            self.rate_limits |= {name: value for name, value in limits.items() if value is not None}
