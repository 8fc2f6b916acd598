"""Responses and conversations as a store holds them, and the steps that change a conversation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from bridge.store.base import Conversation, StoredResponse
from bridge.store.items import item_id, item_ids

ROW_SIZE = 256
"""What a conversation counts for besides its texts, so that empty ones are not free."""

Items = tuple[tuple[str, bytes], ...]
"""Pairs of an item's id and its JSON."""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response and when it was last used."""

    response: StoredResponse
    used: float
    item_ids: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return response_size(self.response)


@dataclass(slots=True)
class KeptConversation:
    """A conversation, when it was last used, and its items (or some of them) by id, in order."""

    conversation: Conversation
    used: float
    items: dict[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return conversation_size(self.conversation) + sum(map(len, self.items.values()))


def response_size(response: StoredResponse) -> int:
    """What a response counts for."""
    return len(response.body) + len(response.input)


def conversation_size(conversation: Conversation) -> int:
    """What a conversation without its items counts for."""
    return ROW_SIZE + len(orjson.dumps(dict(conversation.metadata)))


def keep_response(response: StoredResponse, used: float) -> KeptResponse:
    """A response that has just come, with its items looked up."""
    return KeptResponse(response, used, item_ids(response) if response.item_ids is None else response.item_ids)


def with_ids(items: Sequence[bytes]) -> Items:
    """Items as steps carry them."""
    return tuple((item_id(item), item) for item in items)


# The steps


@dataclass(frozen=True, slots=True)
class Create:
    """Begin, in the place of what was there."""

    conversation: Conversation
    items: Items


@dataclass(frozen=True, slots=True)
class SetMetadata:
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AddItems:
    """Append; an item whose id is there already is replaced where it stands."""

    items: Items


@dataclass(frozen=True, slots=True)
class DeleteItem:
    item_id: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the conversation and its items."""


Step = Create | SetMetadata | AddItems | DeleteItem | Drop


def create(conversation: Conversation, items: Sequence[bytes]) -> Create:
    """The step that begins a conversation; later changes of the caller's metadata do not reach it."""
    return Create(replace(conversation, metadata=dict(conversation.metadata)), with_ids(items))


def step_size(step: Step) -> int:
    """About how much memory a step holds."""
    match step:
        case Create(conversation, items):
            return conversation_size(conversation) + sum(len(item) for _, item in items)
        case AddItems(items):
            return ROW_SIZE + sum(len(item) for _, item in items)
        case _:
            return ROW_SIZE


def apply(step: Step, kept: KeptConversation | None, used: float) -> KeptConversation | None:
    """The conversation after a step; `kept` may be changed in place. Without one only `Create` does anything."""
    match step, kept:
        case Create(conversation, items), _:
            return KeptConversation(conversation, used, dict(items))
        case (Drop(), _) | (_, None):
            return None
        case SetMetadata(metadata), _:
            kept.conversation = replace(kept.conversation, metadata=metadata)
        case AddItems(items), _:
            kept.items.update(items)
        case DeleteItem(id), _:
            kept.items.pop(id, None)
    kept.used = max(kept.used, used)
    return kept
