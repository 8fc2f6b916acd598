"""The models that a client's key lets it use: to it, there are no others."""

from __future__ import annotations

from bridge.auth.key_store import ClientKey
from bridge.backends.router import Router
from bridge.errors import ModelNotFound
from bridge.turn.models import ModelChoice


def visible_models(router: Router, key: ClientKey | None, *, aliases: bool = True) -> list[str]:
    """The names that a client may use, of those that there are."""
    names = router.models(aliases=aliases)
    if key is None or not key.models:
        return names
    return [name for name in names if key.allows(name, *_behind(router, name))]


def resolve_visible(router: Router, key: ClientKey | None, requested: str, *, keyed: bool = False) -> ModelChoice:
    """As `Router.resolve`, for one client.

    It may use a model that its key names, and one that it asks for under a name that its key has.
    """
    if key is None or not key.models:
        return router.resolve(requested, keyed=keyed)
    try:
        choice = router.resolve(requested, keyed=keyed)
    except ModelNotFound:
        choice = None
    if choice is None or not key.allows(requested, *_effective(choice)):
        # As if there were no such model: neither its backend nor the routes to others are this client's business.
        raise ModelNotFound(requested, visible_models(router, key))
    return choice


def _behind(router: Router, name: str) -> list[str]:
    try:
        return _effective(router.resolve(name))
    except ModelNotFound:
        return []


def _effective(choice: ModelChoice) -> list[str]:
    """The model's own name, where that alone says which model it is: another provider's may be called the same."""
    return [choice.effective] if choice.provider is None else []
