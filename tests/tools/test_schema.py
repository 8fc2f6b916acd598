"""Compact JSON, and validation that neither fetches nor hangs."""

from __future__ import annotations

import math
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jsonschema_rs
import pytest

from bridge.tools.schema import compact_json, compile_schema


class TestValidation:
    def test_a_check_tells_conforming_values(self) -> None:
        check = compile_schema(MappingProxyType({"properties": {"n": {"type": "integer"}}}))
        assert check is not None
        assert check({"n": 1})
        assert not check({"n": "1"})
        assert not check({"n": object()})

    @pytest.mark.parametrize("schema", [None, 5, "{}", [], {"type": "nope"}, {"pattern": "("}, {"multipleOf": 0}])
    def test_what_is_no_schema_gives_no_check(self, schema: Any) -> None:
        assert compile_schema(schema) is None

    @pytest.mark.parametrize("value", [True, False])
    def test_the_boolean_schemas(self, value: bool) -> None:
        check = compile_schema(value)
        assert check is not None
        assert check({}) is value

    def test_recursive_and_anchored_schemas_compile(self) -> None:
        for ref in ("#/$defs/N", "#node", "https://example.com/s#/$defs/N"):
            kids = {"type": "array", "items": {"$ref": ref}}
            root = {
                "$id": "https://example.com/s",
                "$ref": ref,
                "$defs": {"N": {"properties": {"kids": kids}, "required": ["kids"], "$anchor": "node"}},
            }
            check = compile_schema(root)
            assert check is not None
            assert check({"kids": [{"kids": []}]})
            assert not check({"kids": [{}]})

    def test_a_file_is_never_read(self, tmp_path: Path) -> None:
        (tmp_path / "s.json").write_text('{"type": "string"}')
        schema = {"$ref": (tmp_path / "s.json").as_uri()}
        # The library would read it: this is what the refusal protects from.
        assert jsonschema_rs.is_valid(schema, "text")
        assert compile_schema(schema) is None

    def test_what_is_too_large_or_could_explode_gives_no_check(self) -> None:
        exploding: dict[str, Any] = {}
        for _ in range(60):
            exploding = {"allOf": [exploding], "unevaluatedProperties": False}
        assert compile_schema(exploding) is None
        assert compile_schema({"description": "x" * 600_000}) is None


def test_compact_json_has_no_spaces_and_keeps_characters() -> None:
    assert compact_json({"ä": [1, 2.5, None, True, "日 本"]}) == '{"ä":[1,2.5,null,true,"日 本"]}'
    assert compact_json(MappingProxyType({"a": 1})) == '{"a":1}'
    with pytest.raises(TypeError):
        compact_json(object())
    assert compact_json(math.nan) == "null"
