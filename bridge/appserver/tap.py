"""What the proto log wants to see of the child. The tap looks at every arrow and delays none."""

from __future__ import annotations

from typing import Any, Protocol


class Owner(Protocol):
    """A turn, as the log sees it."""

    key: str | None
    req_id: str | None


class Tap(Protocol):
    """Implemented by the recorder of `bridge.protolog`; None stands for no log."""

    def begin_read(self) -> None:
        """One read of the child's output: the records until `end_read` share its number and time."""

    def end_read(self) -> None:
        """All lines of the read have been recorded."""

    def deltas(self, lines: list[bytes], texts: list[str], owners: list[Owner]) -> None:
        """Adjacent text deltas, what they say and whose they are: the same as `rpc` for each line, but cheap."""

    def rpc(
        self,
        direction: str,
        kind: str,
        line: bytes,
        *,
        method: str | None = None,
        rpc_id: int | str | None = None,
        key: str | None = None,
        req_id: str | None = None,
    ) -> None:
        """One line of the wire. `direction` is `in` or `out`, `key` the thread or conversation."""

    def claim(self, key: str, req_id: str | None) -> None:
        """What comes for this thread from now on belongs to this request."""

    def forget(self, key: str) -> None:
        """Nothing more will come for this thread or conversation."""

    def lifecycle(self, kind: str, payload: dict[str, Any]) -> None:
        """Something happened to the child itself."""
