"""The app-server as a backend: a supervised child, and the tool calls in its text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import orjson
import trio

from bridge.appserver.legacy import choose_sends, lost_fields
from bridge.appserver.prompt import tool_text
from bridge.appserver.supervisor import Pool
from bridge.appserver.thread_cache import KeepThread
from bridge.appserver.turn import ChildSettings
from bridge.core.backend import Abilities, EventStream
from bridge.core.images import inspect_image
from bridge.core.items import FunctionOutput, Image, Message
from bridge.core.models import (
    DEFAULT_ALIASES,
    DEFAULT_MODEL,
    FALLBACK_MODEL,
    ModelChoice,
    resolve_model,
    split_provider,
    unlisted_model,
)
from bridge.core.stages import Stage, StagedStream
from bridge.core.turn import CODEX_TIERS, Turn
from bridge.errors import LOG_IN, Forbidden, InvalidRequest, Overloaded, UpstreamError
from bridge.redact import harmless
from bridge.threads import in_thread
from bridge.tools.schema import compact_json

if TYPE_CHECKING:
    from bridge.tools.stage import Record

LARGE_SCHEMAS = 32 * 1024
MAX_SCHEMAS = 4 * 1024 * 1024
MAX_TEXTS = 1024 * 1024
"""Characters of injected texts that are remembered."""

MAX_PIXELS, PATCH, MAX_PATCHES = 2048, 32, 2500
"""Codex shrinks images with longer sides than this, or with more patches of 32 by 32 pixels."""

NOT_LOGGED_IN = f"Codex is not logged in. {LOG_IN} The mock models work without a login."


class AppServerBackend:
    """Turns in the children of a pool.

    `configured` are models that the operator or CODEX_HOME name beside those that the child lists, `providers` the
    providers that CODEX_HOME defines; `any_model`: it has chosen one of these, or another that is not OpenAI's.
    `windows()` are the models' context windows in tokens, as far as known. `recorder(req_id)` returns the record of
    tool parsing.
    """

    def __init__(
        self,
        name: str,
        pool: Pool,
        *,
        new_id: Callable[[str], str],
        settings: ChildSettings,
        configured: Sequence[str] = (),
        providers: Sequence[str] = (),
        any_model: bool = False,
        windows: Callable[[], Mapping[str, int]] = dict,
        max_turns: int = 256,
        recorder: Callable[[str], Record] | None = None,
    ) -> None:
        self.name = name
        self.takes = Abilities(counts_tokens=settings.enforce_max_tokens, any_model=any_model)
        self.pool = pool
        self._new_id = new_id
        self._settings = settings
        self._configured = tuple(configured)
        self.providers = tuple(providers)
        self._windows = windows
        self._max_turns = max_turns
        self._recorder = recorder
        self._texts: OrderedDict[bytes, str] = OrderedDict()

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        child = await self.pool.acquire(turn.items)
        if child.config_fault is not None:
            # With its defaults it would send the prompt to OpenAI instead of the configured provider.
            raise _no_access(
                f"Codex cannot use its config.toml ({harmless(child.config_fault)}). Fix it and restart the bridge.",
                "codex_misconfigured",
            )
        if await child.account.check_login(trio.current_time()) == "missing":
            raise _no_access(NOT_LOGGED_IN, "codex_not_logged_in")
        if "cwd" in turn.narrowed:
            await _check_inside(turn.narrowed["cwd"], self._settings.workdir)
        in_text = turn.functions and not child.offers_natively(turn)
        if in_text and turn.tool_text is None:
            turn = replace(turn, tool_text=await self._tool_text(turn))
        record = self._recorder(req_id) if self._recorder else None
        stages: list[Stage] = []
        if in_text and turn.parses_tool_calls and not turn.verbatim:
            from bridge.tools.stage import ToolStage  # with its parser, for the first request with tools

            stages.append(ToolStage(turn, self._new_id, record))
        # Nothing waits between this check and the start, so that the limit holds.
        if self.pool.turns >= self._max_turns:
            raise Overloaded(f"{self._max_turns} turns are running already. Try again in a moment.", retry_after=1)
        stream = child.start(turn, req_id)
        return StagedStream(stream, [*stages, KeepThread(stream.running, child.keep_thread)])

    def models(self) -> list[str]:
        return list(dict.fromkeys([*(entry["id"] for entry in self._offered()), *self._configured]))

    def efforts(self) -> dict[str, list[str]]:
        """The reasoning efforts of each listed model that declares them."""
        return {entry["id"]: _efforts(entry) for entry in self._offered()}

    @property
    def can_answer(self) -> bool:
        """False when no turn can run because there is no login."""
        child = self.pool.child
        return child is None or child.account.login != "missing"

    def lists(self) -> tuple[object, ...] | None:
        child = self.pool.child
        return None if child is None else (child.account.models, child.account.login, self._windows())

    async def wait_until_known(self) -> None:
        """Wait until the child has listed its models. Raises NotReady when there is no child."""
        if self.pool.child is None:
            await self.pool.acquire()

    async def drops(self, turn: Turn) -> list[str]:
        # The dialect decides, and that is known after the handshake.
        info = (await self.pool.acquire(turn.items)).info
        assert info is not None
        dialect, settings = info.dialect, self._settings
        names = []
        has_system = any(isinstance(item, Message) and item.role in ("system", "developer") for item in turn.items)
        if has_system and settings.drops_system_prompt(turn, dialect):
            names.append("system messages (PROXY_IGNORE_CLIENT_SYSTEM_PROMPT)")
        if turn.web_search is not None and (dialect == "legacy" or settings.web_search == "off"):
            names.append("tools:web_search")
        if turn.verbosity is not None and dialect == "legacy":
            names.append("text.verbosity")
        if turn.service_tier is not None and (dialect == "legacy" or turn.service_tier not in CODEX_TIERS):
            names.append("service_tier")
        names += _image_drops(turn)
        if turn.encrypted_reasoning and (dialect == "legacy" or not info.can_inject):
            # Where the history is one text, reasoning could not be given back.
            names.append("include:reasoning.encrypted_content")
        if dialect == "legacy":
            sends = choose_sends(settings.legacy_calls, turn, is_codex=info.is_codex, skip_turn=settings.skip_turn)
            names += lost_fields(turn, sends, is_codex=info.is_codex)
        return names

    def rate_limits(self) -> Mapping[str, Any] | None:
        child = self.pool.child
        return child.account.rate_limits if child is not None else None

    async def read_rate_limits(self) -> Mapping[str, Any] | None:
        """The same, read now if the child can report it."""
        return await (await self.pool.acquire()).account.read_rate_limits()

    def names(self) -> list[str]:
        if not self.can_answer:
            return []
        models = self.models()
        with_efforts = [f"{model}-{effort}" for model, efforts in self.efforts().items() for effort in efforts]
        # An alias always resolves, but is listed only where its model is.
        default = self.preferred()
        targets = {alias: default if model == DEFAULT_MODEL else model for alias, model in DEFAULT_ALIASES.items()}
        return [*models, *(alias for alias, model in targets.items() if model in models), *with_efforts]

    def details(self, model: str) -> Mapping[str, Any]:
        entry: dict[str, Any] = next((entry for entry in self._listed() if entry["id"] == model), {})
        window, inputs = self._windows().get(model), entry.get("inputModalities")
        found: dict[str, Any] = {
            "name": _text(entry.get("displayName")),
            "description": _text(entry.get("description")),
            "context_length": window,
            "max_model_len": window,
            "reasoning_efforts": _efforts(entry),
            "default_reasoning_effort": _text(entry.get("defaultReasoningEffort")),
        }
        if isinstance(inputs, list) and all(map(_text, inputs)):
            found["architecture"] = {"input_modalities": inputs, "output_modalities": ["text"]}
        return {name: value for name, value in found.items() if value}

    def knows(self, name: str) -> bool:
        return self._find(name) is not None

    def resolve(self, name: str) -> ModelChoice:
        return self._find(name) or unlisted_model(name)

    def _find(self, name: str) -> ModelChoice | None:
        found = resolve_model(name, known=self.models(), default=self.preferred(), efforts=self.efforts())
        if found is None and (named := split_provider(name, self.providers)) is not None:
            provider, model = named
            return ModelChoice(name, model, provider=provider)
        return found

    def preferred(self) -> str:
        """The model for a request that names the default: the configured one, else the child's own default."""
        if self._configured:
            return self._configured[0]
        return next((entry["id"] for entry in self._listed() if entry.get("isDefault")), FALLBACK_MODEL)

    def status(self) -> tuple[bool, str]:
        state, reason = self.pool.status()
        return state == "handshake_complete", f"{state}: {reason}"

    async def _tool_text(self, turn: Turn) -> str:
        """The injected text. Agents offer the same tools again and again, so the last ones are remembered.

        It is built beside the event loop when the schemas are large: each tool gets an example made for it.
        """
        identity, size = _identity(turn)
        if size > MAX_SCHEMAS:
            raise InvalidRequest(f"The tools' schemas are larger than {MAX_SCHEMAS:,} bytes.", param="tools")
        known = self._texts.get(identity)
        if known is not None:
            self._texts.move_to_end(identity)
            return known
        text = tool_text(turn) if size < LARGE_SCHEMAS else await in_thread(tool_text, turn)
        self._texts[identity] = text
        while len(self._texts) > 1 and sum(map(len, self._texts.values())) > MAX_TEXTS:
            self._texts.popitem(last=False)
        return text

    def _listed(self) -> list[dict[str, Any]]:
        """The models as the child lists them."""
        child = self.pool.child
        return child.account.models if child is not None else []

    def _offered(self) -> list[dict[str, Any]]:
        return [entry for entry in self._listed() if entry.get("hidden") is not True]


def _no_access(message: str, code: str) -> UpstreamError:
    return UpstreamError(message, code=code, http_status=401, kind="authentication_error")


def _image_drops(turn: Turn) -> Iterator[str]:
    """What Codex changes about images: it does not support `low`, and shrinks large ones."""
    images = [part for item in turn.items if isinstance(item, Message | FunctionOutput) for part in item.parts]
    for image in images:
        if isinstance(image, Image):
            if image.detail in ("low", "original"):
                yield f"detail:{image.detail}"
            with suppress(InvalidRequest):  # such an image is refused when it is sent
                size = inspect_image(image.url)
                patches = -(-size.width // PATCH) * -(-size.height // PATCH)
                if max(size.width, size.height) > MAX_PIXELS or patches > MAX_PATCHES:
                    yield "image size"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _efforts(entry: Mapping[str, Any]) -> list[str]:
    given = entry.get("supportedReasoningEfforts")
    efforts = given if isinstance(given, list) else ()
    names = [effort.get("reasoningEffort") if isinstance(effort, dict) else effort for effort in efforts]
    return [name for name in names if isinstance(name, str)]


def _identity(turn: Turn) -> tuple[bytes, int]:
    """A digest of all that the injected text is made of, and the size of the schemas."""
    digest, size = blake2b(digest_size=16), 0
    for tool in turn.functions:
        schema = compact_json(tool.parameters)
        size += len(schema)
        digest.update(orjson.dumps([tool.full_name, tool.description, tool.strict, schema]))
    digest.update(orjson.dumps([turn.tool_choice.mode, turn.tool_choice.name, turn.parallel]))
    return digest.digest(), size


async def _check_inside(directory: str, workdir: str) -> None:
    """Raise Forbidden unless the path, with links resolved, is a directory inside the work directory."""
    try:
        found = await trio.Path(directory).resolve(strict=True)
        inside = await found.is_dir() and found.is_relative_to(await trio.Path(workdir).resolve(strict=True))
    except (OSError, RuntimeError):
        inside = False
    if not inside:
        raise Forbidden("'payload.meta.cwd' must be a directory inside the work directory.", param="payload.meta.cwd")
