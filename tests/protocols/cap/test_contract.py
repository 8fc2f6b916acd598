"""Schemas and the OpenAPI operation: they say what the models do, and every reference leads somewhere."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from protocols.cap.samples import WHOLE, request_body, seed_example
from pydantic import ValidationError

from bridge.protocols.cap.stream import DIALECT, MODELS, ServiceContract, components, model_schema

WRONG: list[Any] = [None, [], "x", 1, {}, {"op": "open", "p": None}, {"type": "x", "data": {}}]


def schema_at(document: dict[str, Any], *steps: str) -> jsonschema_rs.Draft202012Validator:
    """The schema at a place of a document."""
    pointer = "/".join(step.replace("/", "~1") for step in steps)
    return jsonschema_rs.Draft202012Validator({"$schema": DIALECT, "$ref": f"#/{pointer}", **document})


@pytest.mark.parametrize("name", MODELS)
def test_a_schema_accepts_what_its_model_accepts(name: str) -> None:
    schema = model_schema(name)
    assert schema["title"] == name
    validator = jsonschema_rs.Draft202012Validator(schema)
    for message in WHOLE[name]:
        assert validator.is_valid(message), message
    for wrong in WRONG:
        try:
            MODELS[name].validate_python(wrong)
        except ValidationError:
            assert not validator.is_valid(wrong), wrong


def test_the_bare_path_item() -> None:
    item = ServiceContract.generate_openapi()
    assert list(item) == ["post"]
    post = item["post"]
    assert list(post) == ["summary", "requestBody", "responses"]
    assert post["summary"] == "Invoke Agent"
    assert list(post["responses"]) == ["200"]
    assert post["responses"]["200"]["description"] == "Successful Response"
    assert post["requestBody"]["content"]["application/json"]["schema"]["title"] == "ServiceRequest"
    assert post["responses"]["200"]["content"]["application/json"]["schema"]["title"] == "ServiceResponse"


def test_the_bare_path_item_means_the_same_wherever_it_is_put() -> None:
    document = {"paths": {"/deep/in": ServiceContract.generate_openapi()}}
    assert "$ref" not in json.dumps(document)
    body = schema_at(document, "paths", "/deep/in", "post", "requestBody", "content", "application/json", "schema")
    assert body.is_valid(seed_example("ServiceRequest"))
    assert not body.is_valid(request_body(query=1))
    assert not body.is_valid(request_body(context={"user": {"id": "u"}}))


def test_every_reference_of_a_document_resolves() -> None:
    schemas = components()
    references = set(re.findall(r'"(#/[^"]*)"', json.dumps(schemas)))
    assert references
    assert references <= {f"#/components/schemas/{name}" for name in schemas}
    assert set(MODELS) <= set(schemas)


@pytest.mark.parametrize("name", MODELS)
def test_the_schemas_of_a_document(name: str) -> None:
    validator = schema_at({"components": {"schemas": components()}}, "components", "schemas", name)
    for message in WHOLE[name]:
        assert validator.is_valid(message), message
