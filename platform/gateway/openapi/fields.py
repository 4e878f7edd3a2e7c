"""Schemas of bodies as rows of tables: name, type, bounds, meaning."""

import json
from dataclasses import dataclass, field
from typing import Any

_REF = "#/components/schemas/"
_PLURAL = {"string": "strings", "integer": "integers", "number": "numbers", "object": "objects"}
_MIN_MACHINE_BOUND = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: str
    bounds: str
    description: str
    is_required: bool
    structs: list[str]  # that its type names


@dataclass(frozen=True, slots=True)
class StructView:
    name: str
    description: str
    fields: list[Field]


@dataclass(slots=True)
class Body:
    """The struct, and below it those that it leads to. `not_offered`: names and the values accepted."""

    structs: list[StructView] = field(default_factory=list)
    without_effect: list[str] = field(default_factory=list)
    not_offered: list[tuple[str, str]] = field(default_factory=list)


def body_view(schema: dict[str, Any], components: dict[str, Any]) -> Body:
    body = Body()
    waiting = _structs(schema)
    seen = set(waiting)
    while waiting:
        name = waiting.pop(0)
        struct = _struct(name, components[name], body)
        body.structs.append(struct)
        for found in (found for field_ in struct.fields for found in field_.structs):
            if found not in seen:
                seen.add(found)
                waiting.append(found)
    return body


def _struct(name: str, schema: dict[str, Any], body: Body) -> StructView:
    required = schema.get("required", ())
    is_first = not body.structs
    fields = []
    for field_name, property_ in schema.get("properties", {}).items():
        kinds = property_.keys() - {"description", "default"}
        if is_first and not kinds:
            body.without_effect.append(field_name)
        elif is_first and "enum" in kinds and kinds <= {"enum", "type"} and None in property_["enum"]:
            values = ", ".join(json.dumps(value) for value in property_["enum"] if value is not None)
            body.not_offered.append((field_name, values or "null"))
        else:
            fields.append(
                Field(
                    field_name,
                    type_text(property_),
                    _bounds(property_),
                    property_.get("description", ""),
                    field_name in required,
                    _structs(property_),
                )
            )
    fields.sort(key=lambda shown: not shown.is_required)
    return StructView(name, schema.get("description", ""), fields)


def type_text(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REF)
    if "enum" in schema:
        return ", ".join(json.dumps(value) for value in schema["enum"] if value is not None) or "null"
    if "anyOf" in schema or "oneOf" in schema:
        options = schema.get("anyOf", schema.get("oneOf", []))
        texts = [type_text(option) for option in options if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(texts))
    if schema.get("type") == "array":
        items = type_text(schema.get("items", {}))
        return f"list of {_PLURAL.get(items, items)}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        values = type_text(schema["additionalProperties"])
        return f"object of {_PLURAL.get(values, values)}"
    return str(schema.get("type", "any"))


def _bounds(schema: dict[str, Any]) -> str:
    found = []
    for option in schema.get("anyOf", schema.get("oneOf", [schema])):
        least = _bound(option, "minimum") or _bound(option, "exclusiveMinimum", "above ")
        most = _bound(option, "maximum") or _bound(option, "exclusiveMaximum", "below ")
        found.append(_range(least, most))
        found.append(_range(_bound(option, "minLength"), _bound(option, "maxLength"), " characters"))
        entries = _bound(option, "maxItems") or _bound(option, "maxProperties")
        found.append(_range(_bound(option, "minItems"), entries, " entries"))
    return ", ".join(text for text in dict.fromkeys(found) if text)


def _bound(schema: dict[str, Any], name: str, word: str = "") -> str:
    """Empty for none, and for one that only says what a machine can hold."""
    bound = schema.get(name)
    return "" if bound is None or abs(bound) >= _MIN_MACHINE_BOUND else f"{word}{bound:,g}"


def _range(least: str, most: str, unit: str = "") -> str:
    if least and most:
        return f"{least} to {most}{unit}"
    if least:
        return "not empty" if unit else f"from {least}"
    return f"up to {most}{unit}" if most else ""


def _structs(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for entry in schema for name in _structs(entry)]
    if not isinstance(schema, dict):
        return []
    if "$ref" in schema:
        return [schema["$ref"].removeprefix(_REF)]
    return [name for value in schema.values() for name in _structs(value)]
