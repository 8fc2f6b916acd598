"""The parts of the app-server's protocol that the bridge uses, as lines of text that two versions can be compared by.

Codex describes its own protocol (`codex app-server generate-json-schema`). What the bridge uses of it is not listed
anywhere: a method, notification, member or value counts as used if its name is a string in `bridge/appserver`. Every
request of the server and every kind of error is included, because the bridge must answer the one and translate the
other even if it has never heard of it; and so is every member that a call requires.
"""

from __future__ import annotations

import ast
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
DEPTH = 6
"""How deep the members of a message are followed. The deepest one that the bridge reads has five levels."""
ALL_VALUES = ("CodexErrorInfo",)
"""Types of which every value matters, whether the bridge knows it or not."""


def used_names() -> frozenset[str]:
    """Every string in the code that speaks to Codex. The stand-in plays Codex and does not count."""
    names = set()
    for path in (ROOT / "bridge/appserver").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return frozenset(names)


def read_schema(binary: Path) -> Json:
    """The definitions of the protocol, by name. Raises RuntimeError if this Codex cannot describe it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(binary), "app-server", "generate-json-schema", "--out", folder]
        for options in (["--experimental"], []):  # older versions describe everything without being asked to
            done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)
            if done.returncode == 0:
                break
        else:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
        found = list(Path(folder).glob("codex_app_server_protocol.schemas.json"))
        if not found:
            raise RuntimeError("this Codex writes no file with its whole schema")
        definitions: Json = json.loads(found[0].read_text())["definitions"]
    newer: Json = definitions.pop("v2", {})
    return definitions | newer


def surface(definitions: Json, used: frozenset[str]) -> list[str]:
    """One line for each part that the bridge uses, sorted."""
    lines: set[str] = set()
    for kind, arrow in (("ClientRequest", "call"), ("ServerNotification", "notification")):
        for method, params in messages(definitions, kind):
            if method in used:
                lines.add(f"{arrow} {method}")
                lines |= set(members(definitions, params, f"{arrow} {method}", used, requires=arrow == "call"))
    lines |= {f"request of the server: {method}" for method, _ in messages(definitions, "ServerRequest")}
    for name in ALL_VALUES:
        lines |= {f"{name}: {value}" for value in kinds(definitions.get(name, {}))}
    return sorted(lines)


def messages(definitions: Json, kind: str) -> Iterator[tuple[str, Json]]:
    """The methods of one direction, with the schema of their params."""
    for each in definitions.get(kind, {}).get("oneOf", ()):
        properties = each["properties"]
        for method in properties["method"]["enum"]:
            yield method, properties.get("params", {})


def members(
    definitions: Json, schema: Json, path: str, used: frozenset[str], *, requires: bool, depth: int = DEPTH
) -> Iterator[str]:
    """The used members below a schema, and with `requires` those that a call must have."""
    schema = resolve(definitions, schema)
    if depth == 0:
        return
    if requires:
        for name in schema.get("required", ()):
            yield f"{path} requires {name}"
    for value in values(schema):
        if value in used:
            yield f"{path} = {value}"
    for name, inner in schema.get("properties", {}).items():
        if name in used:
            yield f"{path}.{name}"
            yield from members(definitions, inner, f"{path}.{name}", used, requires=False, depth=depth - 1)
    inner = schema.get("items")
    if isinstance(inner, dict):
        yield from members(definitions, inner, f"{path}[]", used, requires=False, depth=depth - 1)
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from members(definitions, choice, path, used, requires=requires, depth=depth - 1)


def resolve(definitions: Json, schema: Any) -> Json:
    """What a reference leads to. `true`, a schema that allows everything, has no members."""
    while isinstance(schema, dict) and "$ref" in schema:
        schema = definitions.get(schema["$ref"].rpartition("/")[2], {})
    return schema if isinstance(schema, dict) else {}


def values(schema: Json) -> Iterator[str]:
    """The strings that an enumeration lists."""
    for choice in (schema, *schema.get("oneOf", ()), *schema.get("anyOf", ())):
        yield from (value for value in choice.get("enum", ()) if isinstance(value, str))


def kinds(schema: Json) -> Iterator[str]:
    """The values of a type whose values are strings, or objects with one key that says what they are."""
    yield from values(schema)
    for choice in schema.get("oneOf", ()):
        yield from choice.get("required", ())


def difference(before: list[str], after: list[str]) -> list[str]:
    """What came and what went, one line each."""
    gone, new = set(before) - set(after), set(after) - set(before)
    return sorted([f"- {line}" for line in gone] + [f"+ {line}" for line in new], key=lambda line: (line[2:], line))
