"""JSON Schema validation that an untrusted schema cannot turn against us.

Nothing here fetches a reference, recurses without a bound, or validates with a schema whose evaluation could
explode; whatever JSON value stands for a schema, an answer comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from bridge import exact_json

Check = Callable[[Any], bool]
Node = dict[str, Any]

NOTHING: Any = object()
"""Where there is no value at all, since None is one."""
REFS = ("$ref", "$dynamicRef", "$recursiveRef")
MAX_BYTES = 512 * 1024
"""A larger schema is not compiled: the text that carries it would not fit any model's context."""
MAX_WORK = 50_000
"""How many subschemas one place of an instance may meet before the schema counts as hostile."""

_DATA = frozenset({"const", "default", "definitions", "$defs", "enum", "example", "examples"})
_MAPS = frozenset({"patternProperties", "dependentSchemas", "dependencies"})


def compact_json(value: Any) -> str:
    """Encode as JSON without spaces; TypeError beyond what orjson can hold (254 levels)."""
    return exact_json.dumps(value, default=dict).decode()


def plain_copy(schema: Any) -> Any:
    """Copy into plain dicts and lists at most 254 deep; `NOTHING` when that is impossible."""
    try:
        return exact_json.loads(compact_json(schema))
    except (TypeError, ValueError, RecursionError):
        return NOTHING


def compile_schema(schema: Any) -> Check | None:
    """Compile a schema into a check of instances, or None when it cannot or must not be compiled.

    None stands for: no schema at all, an invalid one, one with a reference that leads out of it (never
    fetched, neither http nor file), one larger than MAX_BYTES, and one whose evaluation could explode. The
    check never raises; it says False of what is not JSON.
    """
    plain = plain_copy(schema)
    # The library would parse a str as JSON text, so only the two kinds that JSON Schema knows get through.
    if not isinstance(plain, dict | bool) or len(compact_json(plain)) > MAX_BYTES:
        return None
    return compile_unbounded(plain) if _affordable(plain) else None


def compile_unbounded(schema: Node | bool, known: Mapping[str, Any] = {}) -> Check | None:
    """Compile without a look at the cost; what lies outside the schema is taken from `known`, never fetched."""
    import jsonschema_rs  # 4 MB, for the first request with tools

    try:
        validator = jsonschema_rs.validator_for(schema, retriever=known.__getitem__)
    except (ValueError, jsonschema_rs.ReferencingError):
        return None

    def check(instance: Any) -> bool:
        try:
            return validator.is_valid(instance)
        except ValueError:
            return False

    return check


def _affordable(root: Node | bool) -> bool:
    """Say whether validation is sure to be quick, by counting the subschemas that can meet at one place.

    The library runs nested `unevaluated*` and shared references again and again: thirty lines of schema can
    hold the interpreter for hours, and nothing can interrupt it. A reference that we cannot follow counts as
    hostile.
    """
    anchors: dict[str, Node] = {}
    refs: list[str] = []
    nested_ids = False
    pending: list[Any] = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            refs += [node[word] for word in REFS if isinstance(node.get(word), str)]
            anchors |= {node[word]: node for word in ("$anchor", "$dynamicAnchor") if isinstance(node.get(word), str)}
            nested_ids |= node is not root and isinstance(node.get("$id"), str)
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    if refs and nested_ids:
        return False
    targets = {ref: anchors.get(ref[1:], resolve(root, ref)) for ref in refs}
    done: dict[int, int] = {}

    def work(node: Any) -> int:
        if isinstance(node, list):
            return sum([work(part) for part in node])
        if not isinstance(node, dict):
            return 0
        if id(node) not in done:
            done[id(node)] = 1  # what a cycle costs: the library itself stops there
            total = 1
            for word, part in node.items():
                if word in REFS and isinstance(part, str):
                    total += work(targets[part])
                elif word == "properties" and isinstance(part, dict):
                    total += max([work(each) for each in part.values()], default=0)
                elif word in _MAPS and isinstance(part, dict):
                    total += work(list(part.values()))
                elif word not in _DATA:
                    total += work(part)
            if "unevaluatedProperties" in node or "unevaluatedItems" in node:
                total *= 3
            done[id(node)] = min(total, MAX_WORK + 1)
        return done[id(node)]

    try:
        return NOTHING not in targets.values() and work(root) <= MAX_WORK
    except RecursionError:
        return False


def resolve(root: Any, ref: str) -> Any:
    """Follow a pointer inside the document (`#`, `#/…`, also after the root's own `$id`), else `NOTHING`."""
    base, _, fragment = ref.partition("#")
    own = root.get("$id") if isinstance(root, dict) else None
    if (base and base != own) or (fragment and not fragment.startswith("/")):
        return NOTHING
    node = root
    for raw in fragment.split("/")[1:]:
        key = unquote(raw).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key in map(str, range(len(node))):
            node = node[int(key)]
        else:
            return NOTHING
    return node
