"""Typed reading of `config.json`: a field of the wrong type is refused by its name."""

from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]
LARGEST = 1 << 31  # no size of a model comes near it
LARGEST_NUMBER = 1e30  # float32 still holds it


class UnsupportedModel(Exception):
    """The engine cannot run this model; the message names the setting."""

    code = "unsupported_model"


def positive_integer(fields: Fields, name: str) -> int:
    value: Any = fields.get(name)
    if type(value) is not int or not 0 < value < LARGEST:
        raise _wrong(name, value, "a positive integer")
    return value


def positive_number(fields: Fields, name: str) -> float:
    value: Any = fields.get(name)
    if type(value) not in (int, float) or not 0 < value < LARGEST_NUMBER:
        raise _wrong(name, value, "a positive number")
    return float(value)


def boolean(fields: Fields, name: str) -> bool:
    value: Any = fields.get(name)
    if type(value) is not bool:
        raise _wrong(name, value, "true or false")
    return value


def _wrong(name: str, value: Any, needed: str) -> UnsupportedModel:
    return UnsupportedModel(f"config.json: {name} is {value!r}, {needed} is needed")
