"""The OpenAPI document: valid, whole, and of what is really served."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import validate

from bridge.app.app import App
from bridge.http.request import Route
from bridge.protocols.cap.stream import components
from bridge.protocols.openapi import answers, requests
from bridge.protocols.openapi.document import document
from bridge.protocols.registry import PROTOCOLS
from bridge.server.conversations import MAX_ITEMS
from bridge.server.dispatch import Routes
from bridge.server.gate import OPEN_PATHS
from bridge.server.run import Server
from bridge.settings import load_settings


@pytest.fixture(scope="module")
def routes() -> Routes:
    """The routes of a bridge."""
    settings = load_settings({"PROXY_MOCK_ONLY": "true", "PROXY_STORE": "memory"})
    return Server(App(settings, keys=("key",))).routes


@pytest.fixture(scope="module")
def table(routes: Routes) -> tuple[Route, ...]:
    """The route table."""
    return routes.table


@pytest.fixture(scope="module")
def described(table: tuple[Route, ...]) -> dict[str, Any]:
    """The document."""
    return document("1.2.3", table)


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
    kinds = ("schemas", "headers")
    defined = {f"#/components/{kind}/{name}" for kind in kinds for name in described["components"][kind]}
    # All of CAP's models are there: its streams carry them as text, so no path refers to them.
    assert defined - found <= {f"#/components/schemas/{name}" for name in components()}


def test_no_schema_hides_another() -> None:
    """Requests, answers, the protocols' own and CAP's models share one namespace."""
    own = [protocol.api.schemas() for protocol in PROTOCOLS.values() if protocol.api.schemas is not None]
    parts = (requests.SCHEMAS, answers.SCHEMAS, components(), *(each.schemas for each in own))
    assert own
    assert len({name for part in parts for name in part}) == sum(map(len, parts))


def test_every_route_is_documented(described: dict[str, Any], routes: Routes) -> None:
    """The document and dispatch have the same paths and methods: both come from the table."""
    served = {
        path.replace(":path}", "}"): sorted(name.lower() for name in methods)
        for path, methods in routes.patterns.items()
    }
    assert {path: sorted(item) for path, item in described["paths"].items()} == served
    operations = [operation for item in described["paths"].values() for operation in item.values()]
    assert len(operations) == len(routes.table) == len({operation["operationId"] for operation in operations})
    assert all(operation["summary"] and operation["responses"] for operation in operations)


def test_every_route_names_its_parameters_and_its_body(table: tuple[Route, ...]) -> None:
    """The variables of the pattern are its path parameters; a POST has a body, unless it only ends something."""
    for route in table:
        variables = re.findall(r"{(\w+)", route.pattern)
        assert [each.name for each in route.parameters if each.location == "path"] == variables, route
        assert (route.body is not None) == (route.method == "POST" and route.name != "cancelResponse"), route


def test_only_the_probes_need_no_key(described: dict[str, Any]) -> None:
    """The gate has its own list, because it decides before a route is found."""
    paths = described["paths"]
    opened = {path for path, item in paths.items() for told in item.values() if told.get("security") == []}
    assert opened == OPEN_PATHS


def test_limits_are_the_ones_that_are_checked() -> None:
    """The description is loaded lazily, so the number is written twice."""
    assert requests.MAX_ITEMS == MAX_ITEMS


def test_attaching_to_an_answer_returns_the_errors_of_its_turn(described: dict[str, Any]) -> None:
    """And the errors of a key's limits, which do not apply to ending an answer. Both have the headers of an answer."""
    paths = described["paths"]
    begun, joined = paths["/v1/assist"]["post"]["responses"], paths["/v1/assist/{request_id}"]["get"]["responses"]
    assert set(begun) - set(joined) == {"408", "413", "415"}
    assert set(joined) >= {"402", "404", "409", "429", "500", "502", "503", "504"}
    assert "429" not in paths["/v1/assist/{request_id}"]["delete"]["responses"]
    for told in (begun, joined):
        names = {"x-request-id", "x-bridge-request-id", "x-conversation-id", "x-conversation"}
        names |= {"x-bridge-dropped", "x-bridge-budget"}
        assert set(told["200"]["headers"]) == names


def test_the_caller_may_change_the_document(table: tuple[Route, ...]) -> None:
    """The next one is whole again."""
    document("1", table)["components"]["schemas"].clear()
    assert document("1", table)["components"]["schemas"]


def test_the_document_is_built_once(routes: Routes) -> None:
    """GET /openapi.json needs no key, so it must not cost anything either."""
    assert routes.description is routes.description


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
