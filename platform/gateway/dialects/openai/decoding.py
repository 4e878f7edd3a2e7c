"""JSON bodies to structs, and what is wrong with them in the client's words: code, parameter, rule."""

import re
from typing import TypeVar

import msgspec

from gateway.errors import ApiError

_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_RANGE = re.compile(r"^Expected `\w+` (<=|>=|<|>) (\S+)$")
_LENGTH = re.compile(r"^Expected `(\w+)` of length (<=|>=) (\d+)$")
_LONE_SURROGATE = re.compile(rb"(?<!\\)\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_BOUNDS = {"<=": "at most", ">=": "at least", "<": "below", ">": "above"}
_UNITS = {"str": ("character", "characters")}
_ENTRIES = ("entry", "entries")

Body = TypeVar("Body", bound=msgspec.Struct)


def decode(data: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    """Raises ApiError naming the parameter at fault."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        _json_check(data)  # what is no JSON at all has no parameter at fault
        raise _described(str(error)) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _malformed(data, error) from None


def _json_check(data: bytes) -> None:
    """Raises ApiError. Skips over the values, so it costs little and goes as deep as the decoder can."""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _malformed(data, error) from None


def _malformed(data: bytes, error: Exception) -> ApiError:
    if isinstance(error, RecursionError):
        return ApiError("invalid_json", "the JSON is nested too deeply")
    cause = str(error)
    if "surrogate" in cause or ("truncated" in cause and _LONE_SURROGATE.search(data)):
        cause = "a string holds a lone surrogate"  # at its end the decoder takes it for the end of the data
    return ApiError("invalid_json", f"the request body is not valid JSON: {cause}")


def _described(message: str) -> ApiError:
    located = _PATH.search(message)
    path = located.group(1) if located else ""
    plain = message[: located.start()] if located else message
    if unknown := _UNKNOWN.search(plain):
        param = _joined(path, unknown.group(1))
        return ApiError("unknown_parameter", f"unknown parameter: {param!r}", param=param)
    if missing := _MISSING.search(plain):
        param = _joined(path, missing.group(1))
        return ApiError("missing_required_parameter", f"missing required parameter: {param!r}", param=param)
    if rule := _rule(plain):
        return ApiError("invalid_value", f"{path or 'the body'} {rule}", param=path or None)
    where = f"parameter {path!r}: " if path else ""
    return ApiError("invalid_type", f"{where}{plain}", param=path or None)


def _rule(plain: str) -> str:
    """What a constraint of a field's type asks for; empty where the type itself is wrong."""
    if found := _RANGE.search(plain):
        sign, bound = found.groups()
        return f"must be {_BOUNDS[sign]} {bound.removesuffix('.0')}"
    if found := _LENGTH.search(plain):
        kind, sign, bound = found.groups()
        unit = _UNITS.get(kind, _ENTRIES)[bound != "1"]
        return f"must have {_BOUNDS[sign]} {bound} {unit}"
    return "is out of range" if plain == "Number out of range" else ""


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
