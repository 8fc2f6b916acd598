"""The OpenAPI document: valid, whole, and of what is really served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import validate

from bridge.api.openapi.cap import SCHEMAS as CAP_MODELS
from bridge.api.openapi.document import document
from bridge.config import load_settings
from bridge.server.gate import OPEN_PATHS
from bridge.server.run import Bridge


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """The document."""
    return document("1.2.3")


def test_it_is_a_valid_document(described: dict[str, Any]) -> None:
    """By the rules of OpenAPI 3.1, and with the version of the bridge."""
    validate(described)
    assert described["openapi"].startswith("3.1")
    assert described["info"]["version"] == "1.2.3"


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    """And everything that is defined is used."""
    found = set(references(described))
    for reference in found:
        target: Any = described
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]
    kinds = ("schemas", "headers", "parameters")
    defined = {f"#/components/{kind}/{name}" for kind in kinds for name in described["components"][kind]}
    # CAP's models are all there: what its streams bring stands in texts, whose schemas no path refers to.
    assert defined - found <= {f"#/components/schemas/{name}" for name in CAP_MODELS}


def test_it_tells_of_every_path_that_is_served(described: dict[str, Any]) -> None:
    """And of no other: each with its methods, and whether it needs a key."""
    settings = load_settings({"PROXY_MOCK_ONLY": "true", "PROXY_STORE": "memory"})
    served = {
        path.replace(":path}", "}"): sorted(name.lower() for name in methods)
        for path, methods in Bridge(settings, ("key",)).routes.patterns.items()
    }
    paths = described["paths"]
    methods = ("get", "post", "delete")
    assert {path: sorted(name for name in told if name in methods) for path, told in paths.items()} == served
    opened = {path for path, told in paths.items() for name in methods if told.get(name, {}).get("security") == []}
    assert opened == OPEN_PATHS


def test_who_joins_an_answer_may_get_what_its_turn_fails_of(described: dict[str, Any]) -> None:
    """And what a key's limits say, but not to who ends an answer. An answer has its headers in each form."""
    paths = described["paths"]
    begun, joined = paths["/v1/assist"]["post"]["responses"], paths["/v1/assist/{request_id}"]["get"]["responses"]
    assert set(begun) - set(joined) == {"408", "413", "415"}
    assert set(joined) >= {"402", "404", "409", "429", "500", "502", "503", "504"}
    assert "429" not in paths["/v1/assist/{request_id}"]["delete"]["responses"]
    for answers in (begun, joined):
        names = {"x-request-id", "x-bridge-request-id", "x-conversation-id", "x-conversation", "x-bridge-dropped"}
        assert set(answers["200"]["headers"]) == names


def test_it_is_the_callers_own() -> None:
    """Changing it changes no other."""
    document("1")["paths"].clear()
    assert document("1")["paths"]


def references(node: Any) -> Iterator[str]:
    """Every `$ref` in a document."""
    if isinstance(node, dict):
        for name, member in node.items():
            if name == "$ref" and isinstance(member, str):
                yield member
            yield from references(member)
    elif isinstance(node, list):
        for member in node:
            yield from references(member)
