"""What a client protocol consists of. Each package of a protocol has one `ClientProtocol`; `registry` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from bridge.core.backend import Abilities
from bridge.core.events import TurnEvent, Usage
from bridge.core.items import Item
from bridge.core.turn import Turn
from bridge.errors import BridgeError
from bridge.protocols.sse import KEEPALIVE

if TYPE_CHECKING:
    from bridge.protocols.upstream import UpstreamBuffer

Json = dict[str, Any]
NewId = Callable[[str], str]
ReasoningDisplay = Literal["content", "think", "hidden"]
"""Where reasoning is shown: as `reasoning_content`, between <think> tags in the text, or not at all."""


class Encoder(Protocol):
    """TurnEvents in, one protocol's bytes out; exactly one terminal event.

    `feed` may be called until `finished`; events after the end are ignored. `body` is the non-streamed answer: the
    same events, collected.
    """

    finished: bool
    failure: BridgeError | None

    @property
    def visible(self) -> bool:
        """Whether part of the answer itself has been encoded. After that a failure cannot be a status code."""

    @property
    def usage(self) -> Usage | None:
        """The turn's usage so far."""

    def begin(self) -> bytes:
        """The bytes before the first piece of the answer."""

    def feed(self, events: list[TurnEvent]) -> bytes:
        """The bytes for a batch of events, in order."""

    def body(self) -> bytes:
        """The non-streamed answer. Call it after the end, and only if the answer did not fail."""


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """What an encoder needs that is not in the request: ids, the clock and settings of the operator."""

    new_id: NewId
    now: Callable[[], float]
    reasoning: ReasoningDisplay = "content"
    stored: bool = False
    """Whether the answer is kept, so that a later request can continue it."""


@dataclass(frozen=True, slots=True)
class StreamForm:
    """How a stream is sent: its content type, and the bytes that keep a silent one alive."""

    kind: bytes
    keepalive: bytes


SSE = StreamForm(b"text/event-stream; charset=utf-8", KEEPALIVE)


@dataclass(frozen=True, slots=True)
class Variant:
    """Another path of a protocol, and what it says about the request: members of its body."""

    path: str
    operation: str
    members: Mapping[str, Any] = field(default_factory=dict)
    answer: str | None = None
    """The schema of a JSON answer in /openapi.json, if it is not the protocol's."""


class ApiSchemas(NamedTuple):
    """The schemas of a protocol in /openapi.json."""

    body: Json
    examples: Json
    """Bodies by their summaries."""
    schemas: Mapping[str, Json]
    """All others by name: what a body refers to, answers and errors."""


@dataclass(frozen=True, slots=True)
class ApiDescription:
    """The entry of a protocol in /openapi.json."""

    tag: str
    about: str
    """The description of the tag."""
    description: str
    """What its turns are."""
    operation: str
    summary: str
    answer: str
    """The schema of a JSON answer."""
    stream: str
    """What a stream consists of."""
    schemas: Callable[[], ApiSchemas] | None = None
    """Loads the schemas that are the protocol's own; None if they are with the shared ones."""


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Endpoints that estimate the tokens of a request, and their entries in /openapi.json."""

    variants: tuple[Variant, ...]
    summary: str
    answer: str
    body: Callable[[int], Json]


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How errors are written, and the name of their schema in /openapi.json."""

    body: Callable[[BridgeError], Json] = BridgeError.body
    status: Callable[[BridgeError], int] = attrgetter("http_status")
    schema: str = "Error"
    owner: str = "OpenAI's"
    """Whose format it is."""


@dataclass(frozen=True, slots=True)
class ModelForm:
    """How models are listed, in a form of the protocol's own. A model is given as OpenAI's clients see it."""

    entry: Callable[[Mapping[str, Any]], Json]
    """One model."""
    page: Callable[[Sequence[Mapping[str, Any]], Mapping[str, str]], Json]
    """All models, with the query of the request."""
    schema: str
    page_schema: str
    """Their names in /openapi.json."""
    path: str | None = None
    """Where the list is, if not at the path of the others."""
    note: str = ""
    """What a client has to know about the list at the path of the others."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """How a log reads answers and histories that are not in OpenAI's form."""

    begins_answer: Callable[[Mapping[str, Any]], bool]
    """Whether an event, or a whole answer, is of this protocol."""
    make_decoder: Callable[[], UpstreamBuffer]
    read_entry: Callable[[Any, str], Iterable[Item]]
    """Reads an entry of a history. Raises InvalidRequest for another form."""


@dataclass(frozen=True, slots=True)
class ClientProtocol:
    """One protocol: how its requests are parsed and its answers written.

    `parse(body, context)` returns a turn whose model is the name in the body: the exchange resolves it, because only
    that knows what this client may use. `context` has the items of the response that the request continues.
    """

    name: str
    """The name in the log and in metrics."""
    path: str
    """Where its requests go. Variable parts, such as `{model}`, become members of the body."""
    parse: Callable[[Json, Sequence[Json]], Turn]
    make_encoder: Callable[[Turn, Json, AnswerContext], Encoder]
    dropped_fields: Callable[[Json, Turn, Abilities], list[str]]
    """Names of the fields in a body that have no effect on such a backend."""
    api: ApiDescription
    errors: ErrorForm = ErrorForm()
    keeps_answers: bool = False
    """Whether answers can be stored, continued and run in the background. Such an encoder is a `ResponsesEncoder`."""
    form: str = "openai"
    """The form of its bodies. Protocols of the same form read each other's."""
    variants: tuple[Variant, ...] = ()
    base: str | None = None
    """The beginning of all its paths, if that is not `path` itself."""
    members: Mapping[str, Any] = field(default_factory=dict)
    """Members of the body that its path stands for."""
    header_members: Mapping[bytes, str] = field(default_factory=dict)
    """Headers that belong to the request, and the members of the body that they become. So they are parsed, recorded
    and replayed as all others are."""
    query_members: tuple[str, ...] = ()
    """Parameters of the query that belong to the request, and become members of the body under the same names."""
    mark: bytes | None = None
    """A header that its clients send and others do not. It decides the form of an answer on a path that protocols
    share."""
    request_id_header: bytes | None = None
    """The header in which its clients look for the id of their request, beside `x-request-id`."""
    client_headers: tuple[bytes, ...] = ()
    """All headers of its own that its clients send: a browser asks for them before a request from another origin."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """What to tell a client that asks for a path that does not exist, because its base URL is wrong."""
    key_header: bytes | None = None
    """A header in which its clients send their key, besides those that all clients may use."""
    key_parameter: str | None = None
    """A parameter of the query in which they may send it."""
    stream_form: Callable[[Json], StreamForm] = lambda data: SSE
    """The form of the stream that a body asks for."""
    own_models: tuple[str, ...] = ()
    """Beginnings of the names that its clients use unless told otherwise. If no backend serves such a name, the default
    model answers."""
    models: ModelForm | None = None
    token_count: TokenCount | None = None
    recorded: Recorded | None = None
