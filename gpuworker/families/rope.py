"""Settings of the rotary embedding, in `config.json` as transformers 4 and 5 write it."""

import math
from dataclasses import dataclass

from gpuworker.families.fields import (
    Fields,
    UnsupportedModel,
    boolean,
    positive_integer,
    positive_number,
)

DEFAULT_THETA = 10_000.0
KINDS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
    "yarn": frozenset(
        {
            "factor",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "original_max_position_embeddings",
            "truncate",
        }
    ),
}


@dataclass(frozen=True, slots=True)
class LinearScaling:
    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    factor: float
    original_max_position: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float  # cos and sin are multiplied by it


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None


def rope_parse(raw: Fields) -> Rope:
    """From the whole config. Raises UnsupportedModel."""
    old, new = raw.get("rope_scaling"), raw.get("rope_parameters")
    if old and new:
        raise UnsupportedModel("config.json sets both rope_scaling and rope_parameters")
    name = "rope_parameters" if new else "rope_scaling"
    found = new or old or {}
    if not isinstance(found, dict):
        raise UnsupportedModel(f"config.json: {name} is {found!r}, an object is needed")
    fields = {key: value for key, value in found.items() if value is not None}
    kind = fields.pop("rope_type", None) or fields.pop("type", None) or "default"
    fields.pop("type", None)
    theta = _theta(raw, fields)
    fields.pop("rope_theta", None)
    if fields.pop("partial_rotary_factor", 1) != 1:
        raise UnsupportedModel("partial_rotary_factor other than 1 is not supported")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnsupportedModel(f"rope scaling {kind} is not one of {', '.join(KINDS)}")
    if unknown := sorted(fields.keys() - KINDS[kind]):
        raise UnsupportedModel(f"{name}: {', '.join(unknown)} is not known with rope type {kind}")
    return Rope(theta, _scaling(kind, fields, raw))


def _theta(raw: Fields, fields: Fields) -> float:
    holder = fields if "rope_theta" in fields else raw
    theta = positive_number({"rope_theta": DEFAULT_THETA, **holder}, "rope_theta")
    if theta <= 1:
        raise UnsupportedModel(f"rope_theta {theta} is not above 1")
    return theta


def _scaling(kind: str, fields: Fields, raw: Fields) -> LinearScaling | Llama3Scaling | YarnScaling | None:
    if kind == "default":
        return None
    factor = positive_number(fields, "factor")
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "llama3":
        low, high = positive_number(fields, "low_freq_factor"), positive_number(fields, "high_freq_factor")
        if low >= high:
            raise UnsupportedModel(f"rope: low_freq_factor {low} is not below high_freq_factor {high}")
        return Llama3Scaling(factor, low, high, positive_integer(fields, "original_max_position_embeddings"))
    optional = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True} | dict(fields)
    optional.setdefault("original_max_position_embeddings", raw.get("max_position_embeddings"))
    fast, slow = positive_number(optional, "beta_fast"), positive_number(optional, "beta_slow")
    if slow > fast:
        raise UnsupportedModel(f"rope: beta_slow {slow} is above beta_fast {fast}")
    return YarnScaling(
        factor,
        positive_integer(optional, "original_max_position_embeddings"),
        fast,
        slow,
        boolean(optional, "truncate"),
        _attention_factor(factor, fields),
    )


def _attention_factor(factor: float, fields: Fields) -> float:
    """As YaRN suggests, unless it is stated."""
    if "attention_factor" in fields:
        return positive_number(fields, "attention_factor")

    def suggested(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if fields.get("mscale") and fields.get("mscale_all_dim"):
        numerator = suggested(positive_number(fields, "mscale"))
        return numerator / suggested(positive_number(fields, "mscale_all_dim"))
    return suggested(1.0)
