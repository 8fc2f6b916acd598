"""The options of a run, and the Turn that they make."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bridge.appserver.standin import MODES
from bridge.cli.exec import TypedFlags
from bridge.cli.flags import check_choice
from bridge.core.items import Item, WebSearchOptions
from bridge.core.models import FALLBACK_MODEL
from bridge.core.turn import Turn
from bridge.errors import UsageError
from bridge.protocols.wire import (
    make_format,
    make_tools,
    read_choice,
    read_effort,
    read_input_items,
    read_instructions,
    read_prompt,
    read_schema,
    read_session,
    split_tool,
)
from bridge.routing.mock import REQUEST
from bridge.terminal import read_stdin
from bridge.urls import api_base, is_header_safe

STDIN = "-"
MAX_INPUT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Options(TypedFlags):
    """The flags and the prompt as they were typed, and what follows from them."""

    words: tuple[str, ...] = ()
    """The arguments that are not flags: the prompt."""

    @property
    def text(self) -> str | None:
        """The prompt, as an argument or a flag."""
        return self.words[0] if self.words else self.prompt

    @property
    def is_mock(self) -> bool:
        """Whether the mock answers."""
        by_name = self.backend is None and self.url is None and self._mock_model is not None
        return self.mock or self.backend == "mock" or by_name

    @property
    def mode(self) -> str:
        """The mode of the mock. `--mock` alone is the model mock-echo, which answers as it does over HTTP."""
        if self.mock_mode is None:
            return self._mock_model or "echo"
        return REQUEST if self.mock_mode == "echo" else self.mock_mode

    @property
    def loops(self) -> bool:
        """Whether the mock waits for the output of its call: mock-tool-loop does, as over HTTP."""
        return self.auto_tools or self.mock_mode is None

    @property
    def _mock_model(self) -> str | None:
        mode = (self.model or "").lower().removeprefix("mock-")
        return mode if mode in MODES and mode != (self.model or "").lower() else None


_PATHS = ("tool", "input_json", "output_schema", "codex_bin", "codex_home", "config")
"""Options that may be paths, which need not be UTF-8; so may those of logs."""


def check_options(options: Options) -> None:
    """Raise UsageError for options that are invalid or contradict each other."""
    for option in fields(options):
        value = getattr(options, option.name)
        texts = value if isinstance(value, tuple) else (value,)
        is_path = option.name in _PATHS or option.name.startswith("log_")
        if not is_path and not all(_is_utf8(text) for text in texts if isinstance(text, str)):
            what = "PROMPT" if option.name == "words" else f"--{option.name.replace('_', '-')}"
            raise UsageError(f"{what} is not valid UTF-8.")
    if len(options.words) > 1:
        raise UsageError(f"PROMPT must be one argument, not {len(options.words)}: put the text into quotes.")
    if options.words and options.prompt is not None:
        raise UsageError("Use either PROMPT or --prompt, not both.")
    check_choice("--mock-mode", options.mock_mode, MODES)
    if options.mock_mode is not None and not options.is_mock:
        raise UsageError("--mock-mode requires --mock.")
    if options.mock and options.backend not in (None, "mock"):
        raise UsageError(f"Use either --mock or --backend {options.backend}, not both.")
    if options.url is not None and (options.mock or options.backend is not None):
        raise UsageError("--url uses a running bridge; do not combine it with --mock or --backend.")
    if options.text is None and options.input_json is None:
        raise UsageError(
            'Missing prompt. Use `turnbridge exec "hello"`, --prompt, - to read it from stdin, or --input-json.'
        )
    if options.text == STDIN and options.input_json == STDIN:
        raise UsageError("--prompt and --input-json cannot both be read from stdin.")
    if options.tool_output and not options.auto_tools:
        raise UsageError("--tool-output requires --auto-tools.")
    check_shared(options.url, options.insecure_http, options.log_events, options.provider_key)


def check_shared(url: str | None, insecure_http: bool, log_events: str | None, provider_key: str | None) -> None:
    """Check flags that `cap run` has too. Raises UsageError."""
    if insecure_http and url is None:
        raise UsageError("--insecure-http requires --url.")
    if log_events == "":
        raise UsageError("--log-events is empty: name a file or a directory.")
    if provider_key is not None and not is_header_safe(provider_key):
        raise UsageError("--provider-key must contain only visible ASCII characters.")


def make_turn(options: Options, *, verbatim: bool, parallel: bool, default_model: str | None = None) -> Turn:
    """The turn to run, with the model as typed. Reads files and stdin. Raises UsageError.

    `verbatim`: input items are sent exactly as given. `parallel`: one answer may contain several calls.
    """
    tools = make_tools([_read_tool(spec) for spec in options.tool], options.web_search)
    model = options.model or default_model or FALLBACK_MODEL
    schema = None
    if options.output_schema is not None:
        what = f"--output-schema {options.output_schema}"
        schema = read_schema(_read_file(options.output_schema, what), what)
    return Turn(
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


def base_url(url: str, *, insecure_http: bool = False) -> str:
    """The base URL of --url, which may lack its /v1."""
    try:
        return api_base(url, insecure_http=insecure_http)
    except ValueError as error:
        raise UsageError(f"--url: {error}.") from None


def _read_items(options: Options, verbatim: bool) -> tuple[Item, ...]:
    if options.input_json is not None:
        what = "stdin (--input-json -)" if options.input_json == STDIN else f"--input-json {options.input_json}"
        text = read_stdin(MAX_INPUT) if options.input_json == STDIN else _read_file(options.input_json, what)
        return read_input_items(text, what, verbatim=verbatim)
    assert options.text is not None
    if options.text != STDIN:
        return read_prompt(options.text, "The prompt")
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
    if len(text) > MAX_INPUT:
        raise UsageError(f"{what} is larger than {MAX_INPUT:,} bytes.")
    return text


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
