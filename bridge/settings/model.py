"""Every setting, declared once: default, environment variable, flag, help text, group, unit and rules.

The name of a field is its key in the configuration file. The flags of `serve`, its --help and docs/settings.md are made
from these declarations.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, field_validator

from bridge.settings import values
from bridge.urls import SharedServer, check_url, parse_host, parse_origin, parse_shared_server

SAME = "--"
"""The flag has the setting's name: `--log-format` for `log_format`."""
_TEXTS = {"variable": "", "flags": "", "metavar": "", "unit": "", "shown": "", "more": ""}


def _setting(group: str, default: Any, help: str, **options: Any) -> Any:
    """Declare a setting. Options that are not in `_TEXTS` are rules for pydantic, such as `ge`.

    `help` is shown by --help, `more` is added to it in docs/settings.md. `shown` describes a default that is not a
    plain value. `variable` is the environment variable if it is not PROXY_ and the name. `flags` are the flags of
    `serve`, separated by spaces; a setting without any is left to the environment and the configuration file.
    """
    extra: Any = {"group": group, **{name: options.pop(name, text) for name, text in _TEXTS.items()}}
    return Field(default, description=help, json_schema_extra=extra, **options)


_general = partial(_setting, "General")
_network = partial(_setting, "Network", flags=SAME)
_access = partial(_setting, "Access")
_page = partial(_setting, "Live page", flags=SAME)
_codex = partial(_setting, "Codex")
_legacy = partial(_setting, "Dialects of the app-server")
_models = partial(_setting, "Models and answers")
_cap = partial(_setting, "CAP")
_store = partial(_setting, "Stored responses")
_event_log = partial(_setting, "Event log", flags=SAME)
_replay = partial(_setting, "Replay", flags=SAME)
_limits = partial(_setting, "Limits")
_seconds = partial(_setting, "Timeouts", unit="seconds", allow_inf_nan=True)


class Settings(BaseModel):
    """All settings of `turnbridge serve`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)

    config: Path | None = _general(
        None, "TOML file with backends, routing and settings, as in docs/config.toml.", flags=SAME, metavar="FILE"
    )
    log_format: Literal["console", "json"] = _general(
        "console", "Format of the log lines on stderr.", flags=SAME, more="See [logs](operations.md#logs)."
    )
    log_level: Literal["debug", "info", "warning", "error"] = _general(
        "info", "Log level of stderr; --verbose sets debug, which also logs each request.", flags="--verbose -v"
    )
    otlp_endpoint: str | None = _general(
        None,
        "URL of the OpenTelemetry collector that receives traces.",
        variable="OTEL_EXPORTER_OTLP_ENDPOINT",
        more="Needs the extra `otel`; see [traces](operations.md#traces).",
        min_length=1,
    )

    host: str = _network(
        "127.0.0.1",
        "Address to listen on.",
        metavar="ADDRESS",
        more="Any other address than loopback needs a key from `turnbridge keys add`, or `PROXY_API_KEY` with at least "
        "16 characters.",
    )
    port: int = _network(
        11435, "Port to listen on; 0 picks a free one.", variable="PORT", metavar="PORT", ge=0, le=65535
    )
    tls_cert: Path | None = _network(
        None, "Serve HTTPS with this certificate and its chain (PEM). Needs --tls-key.", metavar="FILE"
    )
    tls_key: Path | None = _network(None, "Private key of --tls-cert (PEM, without a passphrase).", metavar="FILE")

    api_keys: tuple[str, ...] = _access(
        (),
        "Key that clients must send. Repeatable.",
        variable="PROXY_API_KEY",
        flags="--api-key",
        metavar="KEY",
        shown="generated at first start",
        more="In the environment, separate several keys with commas. `turnbridge keys add` makes keys with names and "
        "limits; they work beside these.",
        repr=False,
    )
    allowed_origins: tuple[str, ...] = _access(
        ("app://obsidian.md",),
        "Origins of web pages that may call the bridge, separated by commas; `none` allows none.",
    )
    allowed_hosts: tuple[str, ...] = _access(
        (),
        "Host names that clients may use besides `localhost`, such as a reverse proxy's, separated by commas.",
        more="Requests with another name in `Host` are refused. While this is empty, addresses other than loopback "
        "accept every name.",
    )

    page: bool | None = _page(
        None,
        "Serve the live page at /, which shows turns while they run.",
        flags="--page/--no-page",
        shown="on, if the bridge listens on loopback",
        more="On other addresses it needs `PROXY_ALLOWED_HOSTS`. See [page](page.md).",
    )
    page_memory: int = _page(
        16 * 1024 * 1024,
        "Memory for recent turns, which the page shows without an event log.",
        unit="bytes",
        ge=64 * 1024,
    )

    codex_bin: str | None = _codex(
        None,
        "Codex, or any program that speaks its protocol.",
        variable="CODEX_BIN",
        flags=SAME,
        metavar="PATH",
        shown="codex on PATH",
        more="Started as `CODEX_BIN app-server -c …`. The path may be relative or begin with `~`; a name without a "
        "slash is looked up on PATH.",
    )
    codex_home: Path | None = _codex(
        None,
        "Codex's directory with its login and configuration.",
        variable="CODEX_HOME",
        flags=SAME,
        metavar="DIR",
        shown="~/.codex",
        more="Only the login, the providers and the model are used.",
    )
    mock_only: bool = _codex(False, "Serve only the mock models; Codex is not started.", flags=SAME)
    workers: int = _codex(
        1, "App-server processes. Several on one ChatGPT login can race for its refresh token.", flags=SAME, ge=1, le=64
    )
    native_tools: bool = _codex(
        False,
        "Run Codex as configured in CODEX_HOME: its own tools and prompts, AGENTS.md, memories, skills, MCP servers, "
        "hooks and notify apply to every client's request.",
        flags=SAME,
    )
    workdir: Path = _codex(
        Path("/tmp/codex-work"),  # noqa: S108 — made private, and refused when it is not ours alone
        "Working directory of the app-server. It must belong to you alone; another user needs another one.",
        variable="PROXY_CODEX_WORKDIR",
    )
    approval_policy: Literal["untrusted", "on-failure", "on-request", "never"] = _codex(
        "never", "Codex's approval policy. The bridge declines every request for approval."
    )
    sandbox_mode: Literal["read-only", "workspace-write", "danger-full-access"] = _codex(
        "read-only", "Codex's sandbox."
    )
    kept_threads: int = _codex(
        32,
        "Conversations whose threads are kept for ten minutes, to reuse the provider's cache; 0 keeps none.",
        ge=0,
        le=1024,
    )
    warm_threads: int = _codex(
        4, "Threads started ahead, one for each recent set of instructions and tools; 0 starts none.", ge=0, le=64
    )
    child_ca: Literal["small", "system"] = _codex(
        "small",
        "Certificate authorities that Codex trusts. `small` gives it only those of its provider, where they are known.",
        more="This halves the time of a short turn; `system` changes nothing. See "
        "[certificates](operations.md#certificates-of-the-provider).",
    )
    codex_base_url: str = _codex(
        "https://chatgpt.com/backend-api/codex",
        "API for a ChatGPT login that is used without Codex (`exec --backend codex`, backends of type codex).",
    )
    codex_api_base_url: str = _codex(
        "https://api.openai.com/v1", "API for a login with an API key, used in the same way."
    )
    codex_token_url: str = _codex("https://auth.openai.com/oauth/token", "Server that refreshes a ChatGPT login.")

    dialect: Literal["auto", "current", "legacy"] = _legacy(
        "auto",
        "Protocol version of the app-server; auto asks it.",
        flags=SAME,
        more="`current` has thread/start and turn/start, `legacy` newConversation.",
    )
    legacy_calls: Literal["auto", "both", "turn", "message"] = _legacy(
        "auto",
        "Legacy: which calls carry a prompt. auto sends a real Codex one call, because it takes two for two prompts.",
    )
    include_apply_patch_tool: bool = _legacy(False, "Legacy: value of includeApplyPatchTool in newConversation.")
    responses_skip_turn: bool = _legacy(
        False,
        "Legacy: for /v1/responses, send only the message.",
        more="With a real Codex this [loses effort and schema](http-api.md#legacy-calls).",
    )
    responses_omit_tool_manifest: bool = _legacy(
        False, "Legacy: leave the list of tools out of the calls (the injected text stays)."
    )
    ignore_client_system_prompt: bool | None = _legacy(
        None, "Drop the system messages of chat requests.", shown="only in the legacy dialect"
    )

    models: tuple[str, ...] = _models((), "Additional models to accept and list, separated by commas.")
    aliases: dict[str, str] = _models(
        {},
        "Additional aliases: `fast=gpt-5.5, gpt-4*=gpt-6-astra`.",
        variable="PROXY_MODEL_ALIASES",
        more="Exact names win over patterns, longer patterns over shorter ones.",
    )
    list_models: Literal["all", "models"] = _models(
        "all", "What GET /v1/models lists: all names, or models without aliases and efforts.", flags=SAME
    )
    tool_mode: Literal["auto", "text", "native"] = _models(
        "auto",
        "How tools are offered to the model; auto means text.",
        flags=SAME,
        more="`native` needs Codex 0.145 or later and suits agents with many tools. It can be chosen by model, key or "
        "request: see [tool modes](tool-modes.md).",
    )
    web_search: Literal["off", "cached", "live"] = _models(
        "off", "Web search for requests with a web_search tool.", flags=SAME
    )
    reasoning: Literal["content", "think", "hidden"] = _models(
        "content",
        "Where chat shows reasoning.",
        flags=SAME,
        more="`content`: in `reasoning_content`; `think`: within `<think>` tags; `hidden`: nowhere.",
    )
    unsupported: Literal["drop", "reject"] = _models(
        "drop",
        "What to do with parameters that Codex does not support.",
        flags=SAME,
        more="Dropped ones are named in the response header `x-bridge-dropped`.",
    )
    stream_default: bool = _models(False, "Stream when a request does not set `stream`.")
    enforce_max_tokens: bool = _models(
        True,
        "End an answer at the client's token limit. Codex has no such limit, so the bridge counts.",
        more="See [limits of tokens](http-api.md#limits-of-tokens).",
    )

    cap_model: str | None = _cap(None, "Model for a request that names none.", shown="the default backend's")
    cap_agents: dict[str, str] = _cap({}, "Models by agent id: `helper=gpt-5.5, …`.")
    cap_users: dict[str, str] = _cap(
        {},
        "User ids by key label: `key-0123456789ab=ada, …`, with the labels of `turnbridge usage`.",
        more="When set, other users are refused.",
    )
    cap_grace: float = _cap(
        30, "How long a stream waits for a client that has disconnected.", unit="seconds", ge=0, le=3600
    )
    cap_stream_default: bool = _cap(False, "Stream to clients that accept any content type.")
    cap_strict: bool = _cap(False, "Refuse conversation ids that the bridge does not know.")
    cap_agent_id: UUID | None = _cap(None, "Agent id of the bridge in `/health`.", shown="new at each start")

    store: str = _store(
        "sqlite",
        "Where responses are stored: sqlite, memory, off, or a postgresql:// URL.",
        flags=SAME,
        metavar="WHERE",
        more="`sqlite` is a file in the state directory. `postgresql://USER:PASSWORD@HOST/DATABASE` also has the keys "
        "of clients, and several bridges can share it; see [several machines](operations.md#several-machines).",
        repr=False,
    )
    shared: str | None = _store(
        None,
        "Valkey or Redis server where several bridges count the limits of keys.",
        metavar="URL",
        more="`valkey://USER:PASSWORD@HOST:PORT/DATABASE`, or `redis://`; with TLS `valkeys://` or `rediss://`; see "
        "[several machines](operations.md#several-machines).",
        repr=False,
    )
    store_ttl: float = _store(
        30 * 24 * 3600,
        "How long responses are stored.",
        unit="seconds",
        shown="2592000 (30 days)",
        gt=0,
        allow_inf_nan=True,
    )
    store_max_bytes: int = _store(1024**3, "Size limit of the store.", unit="bytes", ge=1024**2)

    log_events: str | None = _event_log(
        None,
        "Append all events to this NDJSON file, or to a new file in this directory (existing, or ending in /).",
        metavar="DIR|FILE",
        more="See [event log](event-log.md).",
        min_length=1,
    )
    log_max_bytes: int | None = _event_log(
        None,
        "Start a new log file at this size; FILE is renamed to FILE-TIME. 0: never.",
        unit="bytes",
        shown="0; 268435456 in a DIR",
        ge=0,
    )
    log_max_age: float = _event_log(0, "Start a new log file after this time. 0: never.", unit="seconds", ge=0)
    log_keep: int = _event_log(0, "Keep this many log files and delete older ones. 0: keep all.", ge=0)
    log_on_error: Literal["drop", "stop"] = _event_log(
        "drop", "When the log cannot be written: continue without it, or stop with exit code 1."
    )

    replay: Path | None = _replay(
        None,
        "Answer from the recordings in this event log; Codex is not started.",
        metavar="LOG",
        more="See [replay](event-log.md#replay).",
    )
    on_miss: Literal["error", "forward", "nearest"] = _replay(
        "error",
        "Answer to a request that was not recorded: a 404 with the difference, a live answer, or the most similar one.",
    )
    speed: float = _replay(
        0,
        "Speed of recorded answers: 1 as recorded, 2 twice as fast, 0 without delays.",
        variable="PROXY_REPLAY_SPEED",
        metavar="FACTOR",
        ge=0,
    )
    ignore: tuple[str, ...] = _replay(
        (),
        "Member of requests that may differ from the recording, such as instructions or input.*.id. Repeatable.",
        variable="PROXY_REPLAY_IGNORE",
        metavar="MEMBER",
    )

    max_body: int = _limits(
        20 * 1024 * 1024,
        "Largest request body.",
        unit="bytes",
        more="Fixed limits besides: 64 levels of nesting, 512 tools, 64 KiB of headers.",
        ge=1024,
    )
    max_connections: int = _limits(
        900,
        "Connections at once. Above it idle ones are closed; when all are busy, new ones get 503.",
        more="Each is an open file (`ulimit -n`).",
        ge=1,
    )
    max_turns: int = _limits(256, "Turns at once, for each backend.", ge=1)
    max_queue: int = _limits(
        64,
        "Requests that may wait for a turn, at most half of them from one key.",
        more="Requests beyond it get 503, or 429 where the limit is the key's own.",
        ge=0,
        le=10_000,
    )
    queue_timeout: float = _limits(10, "Time that a request may wait for a turn.", unit="seconds", ge=0, le=600)
    max_rss: int = _limits(0, "Memory in use above which new turns get 503. 0: no limit.", unit="bytes", ge=0)

    rpc_timeout: float = _seconds(30, "Time for a call to the app-server.", gt=0)
    first_event_timeout: float = _seconds(120, "Time until the first event of a turn.", gt=0)
    idle_timeout: float = _seconds(300, "Time between two events of a turn.", gt=0)
    turn_timeout: float = _seconds(3600, "Time for a whole turn.", gt=0)
    status_hold: float = _seconds(
        2,
        "Time that a stream waits with its HTTP status for the first piece of the answer.",
        more="A failure within it is an error status, on which clients can retry; a later one is an event.",
        ge=0,
    )
    write_timeout: float = _seconds(60, "Time for a client to read.", gt=0)
    keepalive: float = _seconds(15, "Interval of keepalives in a stream.", gt=0)
    grace: float = _seconds(20, "Time for running turns to finish when the bridge stops.", ge=0)
    drain_delay: float = _seconds(
        0,
        "Time after the signal to stop in which `/readyz` answers 503 and clients are still served.",
        more="A load balancer sends new clients elsewhere in this time.",
        ge=0,
        le=600,
        allow_inf_nan=False,
    )

    _lists = field_validator("api_keys", "models", "ignore", "allowed_hosts", mode="before")(values.split)
    _pairs = field_validator("aliases", "cap_agents", "cap_users", mode="before")(values.pair)

    @field_validator("api_keys")
    @classmethod
    def _no_empty_key(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if any(not key.strip() for key in keys):
            raise ValueError("an API key must not be empty")
        return keys

    # The app-server runs in another working directory, where a relative path would lead elsewhere.
    _absolute_paths = field_validator("codex_home", "workdir")(lambda path: path and values.absolute(path))
    # A name without a slash is looked up on PATH.
    _program = field_validator("codex_bin")(lambda name: str(values.absolute(name)) if name and "/" in name else name)
    _stores = field_validator("store")(values.check_store)
    _shared_urls = field_validator("shared")(values.check_shared)
    _safe_urls = field_validator("codex_base_url", "codex_api_base_url", "codex_token_url")(check_url)
    # An empty variable counts as unset, so `none` stands for an empty list.
    _no_origins = field_validator("allowed_origins", mode="before")(
        lambda value: () if isinstance(value, str) and value.strip().lower() == "none" else values.split(value)
    )
    _origins = field_validator("allowed_origins")(lambda origins: tuple(map(parse_origin, origins)))
    _hosts = field_validator("allowed_hosts")(lambda hosts: tuple(map(parse_host, hosts)))

    @property
    def database_url(self) -> str | None:
        """The URL of the PostgreSQL database that bridges share; None without one. It may contain a password."""
        return self.store if self.store_kind == "postgresql" else None

    @property
    def shared_server(self) -> SharedServer | None:
        """The server where bridges share limits."""
        return None if self.shared is None else parse_shared_server(self.shared)

    @property
    def store_kind(self) -> str:
        """The kind of the store, without the password of its URL."""
        return values.store_kind(self.store)

    @property
    def codex_home_path(self) -> Path:
        """The CODEX_HOME that the app-server uses."""
        return self.codex_home or Path.home() / ".codex"
