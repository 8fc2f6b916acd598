"""What was typed after `cap run`, checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.appserver.standin.script import MODES
from bridge.errors import UsageError
from bridge.urls import is_header_safe


@dataclass(frozen=True, slots=True)
class Options:
    """The flags, as they were typed."""

    model: str | None = None
    mock: bool = False
    mock_mode: str | None = None
    url: str | None = None
    insecure_http: bool = False
    provider_key: str | None = field(default=None, repr=False)
    native_tools: bool = False
    timeout: float | None = None
    log_events: str | None = None
    codex_bin: str | None = None
    codex_home: str | None = None
    config: str | None = None

    @property
    def default_model(self) -> str | None:
        """The model for requests that name none."""
        return self.model or (f"mock-{self.mock_mode or 'echo'}" if self.mock else None)


def check_options(options: Options) -> None:
    """Refuse what cannot be meant. Raises UsageError."""
    if options.mock_mode is not None and options.mock_mode not in MODES:
        raise UsageError(f"--mock-mode {options.mock_mode[:40]}: choose one of {', '.join(MODES)}.")
    if options.mock_mode is not None and not options.mock:
        raise UsageError("--mock-mode needs --mock.")
    if options.url is not None and (options.mock or options.model is not None or options.log_events is not None):
        raise UsageError("--url asks a bridge that runs already; --mock, --model and --log-events do not go with it.")
    if options.insecure_http and options.url is None:
        raise UsageError("--insecure-http needs --url.")
    if options.log_events == "":
        raise UsageError("--log-events is empty: name a file or a directory.")
    if options.provider_key is not None and not is_header_safe(options.provider_key):
        raise UsageError("--provider-key has visible ASCII characters only.")
