"""Parameters that are known but not offered: accepted at values that ask for nothing, so that clients which
always send their defaults are served.

A field's type names these values; the OpenAPI document and the check below both read them from there.
"""

from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from gateway.dialects.openai.refusals import unsupported

Ignored = Raw | UnsetType  # any value: it has no effect here

OnlyNull = Annotated[Raw, Meta(extra_json_schema={"enum": [None]})] | UnsetType
OnlyFalse = Annotated[Raw, Meta(extra_json_schema={"enum": [None, False]})] | UnsetType
OnlyTrue = Annotated[Raw, Meta(extra_json_schema={"enum": [None, True]})] | UnsetType
# With a type of its own: 1.0 equals True, and `typing` shares what is equal.
OnlyOne = (
    Annotated[Raw, Meta(extra_json_schema={"enum": [None, 1.0], "type": ["number", "null"]})] | UnsetType
)
OnlyEmptyString = Annotated[Raw, Meta(extra_json_schema={"enum": [None, ""]})] | UnsetType
OnlyEmptyList = Annotated[Raw, Meta(extra_json_schema={"enum": [None, []]})] | UnsetType
OnlyEmptyObject = Annotated[Raw, Meta(extra_json_schema={"enum": [None, {}]})] | UnsetType
OnlyNone = Annotated[Raw, Meta(extra_json_schema={"enum": [None, "none"]})] | UnsetType
OnlyNoneOrAuto = Annotated[Raw, Meta(extra_json_schema={"enum": [None, "none", "auto"]})] | UnsetType
OnlyMedium = Annotated[Raw, Meta(extra_json_schema={"enum": [None, "medium"]})] | UnsetType
OnlyLeft = Annotated[Raw, Meta(extra_json_schema={"enum": [None, "left"]})] | UnsetType
OnlyText = Annotated[Raw, Meta(extra_json_schema={"enum": [None, ["text"]]})] | UnsetType

_MAX_NEUTRAL_BYTES = 256  # longer ones are not looked at


def neutral_require(
    struct: msgspec.Struct, prefix: str = "", *, exempt: frozenset[str] = frozenset()
) -> None:
    """Raises ApiError naming the first field, but for `exempt` ones, that asks for something."""
    for name, accepted in _accepted(type(struct)).items():
        value = getattr(struct, name)
        if value is not UNSET and name not in exempt and not is_one_of(value, accepted):
            raise unsupported(prefix + name)


def is_neutral(struct: msgspec.Struct, name: str) -> bool:
    return is_one_of(getattr(struct, name), _accepted(type(struct))[name])


def is_one_of(value: Raw | UnsetType, accepted: list[Any]) -> bool:
    """An absent value is. 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, UnsetType):
        return True
    if len(bytes(value)) > _MAX_NEUTRAL_BYTES:
        return False
    try:
        found = msgspec.json.decode(value)
    except msgspec.MsgspecError:  # the body's decoder only skipped it
        return False
    return any(
        found == neutral and isinstance(found, bool) == isinstance(neutral, bool) for neutral in accepted
    )


@cache
def _accepted(struct_type: type[msgspec.Struct]) -> dict[str, list[Any]]:
    """By field, for those whose type lists its values."""
    described = msgspec.inspect.type_info(struct_type)
    assert isinstance(described, msgspec.inspect.StructType)
    values = {}
    for field in described.fields:
        kind = field.type
        if isinstance(kind, msgspec.inspect.Metadata) and isinstance(kind.type, msgspec.inspect.RawType):
            values[field.name] = (kind.extra_json_schema or {})["enum"]
    return values
