"""What the platform says about itself: models, usage, health."""

from typing import Literal

import msgspec

from billing.usage_lookup import UsageRow


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`max_model_len`: the context, prompt and output together, that a replica can serve now."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    object: Literal["list"]
    data: list[Model]


class StreamCancelled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cancelled: Literal[True]


class Alive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    status: Literal["ok"]


class Unhealthy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    error: Literal["unhealthy"]
    error_type: Literal["healthcheck"]


class Readiness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ready: bool
    missing: list[Literal["snapshot", "dispatcher", "worker", "spool"]]


class UsageReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sums over `records`: one for each prompt and attempt, none while it is `in_progress`."""

    object: Literal["usage"]
    request_id: str
    status: Literal["recorded", "in_progress"]
    prompt_tokens: int
    completion_tokens: int
    cost_micro_usd: int
    records: list[UsageRow]
