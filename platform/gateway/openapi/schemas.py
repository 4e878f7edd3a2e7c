"""JSON Schemas of structs, with what each field means and without what says nothing."""

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.openapi.wording import FIELDS

_TEMPLATE = "#/components/schemas/{name}"
_NO_EFFECT = "Accepted without effect."
_NEUTRAL = "Not offered: accepted only at a value that asks for nothing."


class Schemas:
    """`components` holds a schema for every struct that the given types lead to."""

    def __init__(self, types: Iterable[Any]) -> None:
        distinct: list[Any] = []
        for kind in types:
            if kind not in distinct:
                distinct.append(kind)
        schemas, components = msgspec.json.schema_components(distinct, ref_template=_TEMPLATE)
        self._schemas = list(zip(distinct, schemas, strict=True))
        self.components: dict[str, Any] = {
            name: _component(name, schema) for name, schema in sorted(components.items())
        }

    def of(self, kind: Any) -> dict[str, Any]:
        return next(schema for known, schema in self._schemas if known == kind)


def _component(struct: str, schema: dict[str, Any]) -> dict[str, Any]:
    schema.pop("title", None)
    schema["properties"] = {
        name: _property(struct, name, property_, schema.get("required", ()))
        for name, property_ in schema.get("properties", {}).items()
    }
    if not schema.get("required"):
        schema.pop("required", None)
    return schema


def _property(struct: str, name: str, schema: dict[str, Any], required: Iterable[str]) -> dict[str, Any]:
    if "default" in schema and (schema["default"] is None or name in required):
        del schema["default"]
    if not schema.keys() - {"default"}:
        description = _NO_EFFECT
    elif "enum" in schema and schema.keys() <= {"enum", "type"} and None in schema["enum"]:
        description = _NEUTRAL
    else:
        description = FIELDS.get(f"{struct}.{name}") or FIELDS.get(name, "")
    return {"description": description, **schema} if description else schema
