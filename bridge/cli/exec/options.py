"""What was typed, and the Turn that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bridge.api.wire.request import (
    make_format,
    make_tools,
    read_choice,
    read_effort,
    read_input_items,
    read_instructions,
    read_outputs,
    read_prompt,
    read_schema,
    read_session,
    split_tool,
)
from bridge.appserver.standin.script import MODES
from bridge.backends.mock import REQUEST
from bridge.cli.streams import read_stdin
from bridge.errors import UsageError
from bridge.turn.items import Item, WebSearchOptions
from bridge.turn.models import FALLBACK_MODEL
from bridge.turn.turn import Turn
from bridge.urls import api_base, is_header_safe

STDIN = "-"
MAX_INPUT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Options:
    """The flags, as they were typed."""

    words: tuple[str, ...] = ()
    """What is no flag: the prompt."""
    prompt: str | None = None
    model: str | None = None
    instructions: str | None = None
    system: str | None = None
    append_system_prompt: str | None = None
    tool: tuple[str, ...] = ()
    web_search: bool = False
    tool_choice: str | None = None
    input_json: str | None = None
    json: bool = False
    trace: bool = False
    log_requests: str | None = None
    log_responses: str | None = None
    log_events: str | None = None
    session_id: str | None = None
    effort: str | None = None
    output_schema: str | None = None
    auto_tools: bool = False
    tool_output: tuple[str, ...] = ()
    max_steps: int = 4
    mock: bool = False
    mock_mode: str | None = None
    backend: str | None = None
    url: str | None = None
    insecure_http: bool = False
    provider_key: str | None = field(default=None, repr=False)
    native_tools: bool = False
    timeout: float | None = None
    codex_bin: str | None = None
    codex_home: str | None = None
    config: str | None = None

    @property
    def asked(self) -> str | None:
        """The prompt, however it was given."""
        return self.words[0] if self.words else self.prompt

    @property
    def is_mock(self) -> bool:
        """Whether nobody needs to be asked."""
        by_name = self.backend is None and self.url is None and self._mock_model is not None
        return self.mock or self.backend == "mock" or by_name

    @property
    def mode(self) -> str:
        """What the mock plays. `--mock` alone is the model mock-echo, which answers as it does over HTTP."""
        if self.mock_mode is None:
            return self._mock_model or "echo"
        return REQUEST if self.mock_mode == "echo" else self.mock_mode

    @property
    def loops(self) -> bool:
        """Whether the mock waits for the output of its call: a model mock-tool-loop does, as over HTTP."""
        return self.auto_tools or self.mock_mode is None

    @property
    def _mock_model(self) -> str | None:
        mode = (self.model or "").lower().removeprefix("mock-")
        return mode if mode in MODES and mode != (self.model or "").lower() else None


_PATHS = frozenset(
    {
        "tool",
        "input_json",
        "log_requests",
        "log_responses",
        "log_events",
        "output_schema",
        "codex_bin",
        "codex_home",
        "config",
    }
)


def check_options(options: Options) -> None:
    """Refuse what cannot be meant. Raises UsageError."""
    for option in fields(options):
        value = getattr(options, option.name)
        texts = value if isinstance(value, tuple) else (value,)
        if option.name not in _PATHS and not all(_is_utf8(text) for text in texts if isinstance(text, str)):
            what = "PROMPT" if option.name == "words" else f"--{option.name.replace('_', '-')}"
            raise UsageError(f"{what} is not valid UTF-8.")
    if len(options.words) > 1:
        raise UsageError(f"PROMPT is one argument, and there are {len(options.words)}: put the text into quotes.")
    if options.words and options.prompt is not None:
        raise UsageError("PROMPT and --prompt are the same setting; give one of them.")
    if options.mock_mode is not None and options.mock_mode not in MODES:
        raise UsageError(f"--mock-mode {options.mock_mode[:40]}: choose one of {', '.join(MODES)}.")
    if options.mock_mode is not None and not options.is_mock:
        raise UsageError("--mock-mode needs --mock.")
    if options.mock and options.backend not in (None, "mock"):
        raise UsageError(f"--mock and --backend {options.backend} contradict each other; give one of them.")
    if options.url is not None and (options.mock or options.backend is not None):
        raise UsageError("--url asks a bridge that runs already; --mock and --backend do not go with it.")
    if options.insecure_http and options.url is None:
        raise UsageError("--insecure-http needs --url.")
    if options.asked is None and options.input_json is None:
        raise UsageError(
            'The prompt is missing: write `codex-bridge exec "hello"`, or give --prompt, - to read it from stdin, or '
            "--input-json."
        )
    if options.asked == STDIN and options.input_json == STDIN:
        raise UsageError("--prompt and --input-json cannot both be read from stdin.")
    if options.tool_output and not options.auto_tools:
        raise UsageError("--tool-output needs --auto-tools.")
    if options.log_events == "":
        raise UsageError("--log-events is empty: name a file or a directory.")
    if options.provider_key is not None and not is_header_safe(options.provider_key):
        raise UsageError("--provider-key has visible ASCII characters only.")


def make_turn(options: Options, *, verbatim: bool, parallel: bool) -> Turn:
    """The turn to run, with the model as it was typed. Reads files and stdin. Raises UsageError.

    `verbatim`: input items go out exactly as they came in. `parallel`: one answer may hold several calls.
    """
    tools = make_tools([_read_tool(spec) for spec in options.tool], options.web_search)
    model = options.model or FALLBACK_MODEL
    schema = None
    if options.output_schema is not None:
        what = f"--output-schema {options.output_schema}"
        schema = read_schema(_read_file(options.output_schema, what), what)
    return Turn(
        endpoint="responses",
        model=model,
        requested_model=model,
        items=_read_items(options, verbatim),
        instructions=read_instructions(options.instructions, options.system, options.append_system_prompt),
        tools=tools,
        tool_choice=read_choice(options.tool_choice, tools),
        effort=read_effort(options.effort),
        output_format=make_format(schema),
        stream=True,
        parallel=parallel,
        web_search=WebSearchOptions() if options.web_search else None,
        encrypted_reasoning=True,
        session=read_session(options.session_id),
        provider_key=options.provider_key,
    )


def tool_outputs(options: Options) -> Mapping[str, str]:
    """What each tool gives back under --auto-tools."""
    return read_outputs(options.tool_output)


def base_url(url: str, *, insecure_http: bool = False) -> str:
    """--url: with or without its /v1."""
    try:
        return api_base(url, insecure_http=insecure_http)
    except ValueError as error:
        raise UsageError(f"--url: {error}.") from None


def _read_items(options: Options, verbatim: bool) -> tuple[Item, ...]:
    if options.input_json is not None:
        what = "stdin (--input-json -)" if options.input_json == STDIN else f"--input-json {options.input_json}"
        text = read_stdin(MAX_INPUT) if options.input_json == STDIN else _read_file(options.input_json, what)
        return read_input_items(text, what, verbatim=verbatim)
    assert options.asked is not None
    if options.asked != STDIN:
        return read_prompt(options.asked, "The prompt")
    try:
        return read_prompt(read_stdin(MAX_INPUT).decode("utf-8"), "The prompt on stdin")
    except UnicodeDecodeError:
        raise UsageError("The prompt on stdin is not valid UTF-8.") from None


def _read_tool(spec: str) -> tuple[str, dict[str, Any]]:
    if not _is_utf8(spec.partition(":json=")[0]):
        raise UsageError("--tool is not valid UTF-8.")
    name, form, value = split_tool(spec)
    if form == "inline":
        return name, read_schema(value.encode(), f"--tool {name}")
    what = f"--tool {name}: {value}"
    return name, read_schema(_read_file(value, what), what)


def _read_file(path: str, what: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_INPUT + 1)
    except OSError as error:
        raise UsageError(f"{what}: {error.strerror}.") from None
    return _bounded(text, what)


def _bounded(text: bytes, what: str) -> bytes:
    if len(text) > MAX_INPUT:
        raise UsageError(f"{what} is larger than {MAX_INPUT:,} bytes.")
    return text


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
