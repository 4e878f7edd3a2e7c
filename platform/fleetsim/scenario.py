"""A scenario file (TOML): a fleet, what arrives, what happens to it, and what has to hold.

title = "One tenant submits ten thousand long generations"
duration_s = 80
measure_from_s = 25

[fleet]
replicas = 8

[[workload]]                # see `fleetsim.workloads`

[[variant]]                 # a row beside the run: the same with something changed
name = "first come first served"
set = { "queue.policy" = "fifo" }

[[check]]
name = "added first token, p95"
value = "added_ttft_ms.p95"
relation = "≤"
limit = 150
unit = "ms"
"""

import copy
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from fleetsim.clients import ClientRules
from fleetsim.workloads import Workload, workload_of

Seconds = Annotated[float, Meta(ge=0, le=31 * 86_400)]
Count = Annotated[int, Meta(ge=0, le=10_000)]
FOLDER = Path(__file__).parent / "scenarios"


class ScenarioError(ValueError):
    """A scenario that cannot be: the message names the field. `code` is stable."""

    code = "invalid_scenario"


class FleetPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    replicas: Annotated[int, Meta(ge=1, le=10_000)]
    model: Literal["spec", "physical", "measured"] = "spec"
    measured: str = ""  # file of the measured model
    zones: Annotated[int, Meta(ge=1, le=16)] = 1
    warm: Count = 0  # replicas in the warm pool: loaded, promoted under pressure
    warm_s: Seconds = 5.0  # until a promoted one is ready
    smaller: Count = 0  # replicas of the smaller model
    hop_ms: Annotated[float, Meta(ge=0, le=1000)] = 1.0  # between dispatcher and replica


class QueuePart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`settings` are fields of `policy.queue_settings.QueueSettings`."""

    policy: Literal["production", "fifo", "vtc"] = "production"
    settings: dict[str, Any] = {}


class Event(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["zone_loss"]
    at_s: Seconds
    zone: Count = 0


class CheckPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    value: str  # a path in the result, or a fact of `fleetsim.facts`
    relation: Literal["≤", "≥", "<", ">", "="]
    limit: float
    unit: str = ""


class VariantPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`set`: dotted paths into the scenario and their values; a number is an index."""

    name: str
    set: dict[str, Any] = {}


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    duration_s: Annotated[float, Meta(gt=0, le=31 * 86_400)]
    fleet: FleetPart
    measure_from_s: Seconds = 0.0
    measure_to_s: Seconds = 0.0  # 0: to the end
    seed: int = 7
    queue: QueuePart = QueuePart()
    clients: ClientRules = ClientRules()
    quota_tokens_per_minute: Annotated[int, Meta(ge=0)] = 0  # of every tenant; 0: none
    event: tuple[Event, ...] = ()
    variant: tuple[VariantPart, ...] = ()
    check: tuple[CheckPart, ...] = ()
    workload: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    file: _File
    workload: Workload
    config: Mapping[str, Any]
    folder: Path

    @property
    def measured_us(self) -> tuple[int, int]:
        end_s = self.file.measure_to_s or self.file.duration_s
        return round(self.file.measure_from_s * 1e6), round(end_s * 1e6)

    @property
    def is_disturbed(self) -> bool:
        """Whether a quiet run of it would be another one."""
        return bool(self.file.event or self.workload.noisy())

    def changed(self, changes: Mapping[str, Any]) -> "Scenario":
        """Raises ScenarioError for a path that leads nowhere."""
        config = copy.deepcopy(dict(self.config))
        for path, value in changes.items():
            _change(config, path, value)
        return scenario_of(self.name, config, self.folder)


def scenario_read(path: Path) -> Scenario:
    """Raises OSError, ScenarioError, WorkloadError."""
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} is no TOML: {error}") from error
    return scenario_of(path.stem, config, path.parent)


def scenario_of(name: str, config: Mapping[str, Any], folder: Path = Path()) -> Scenario:
    """Raises ScenarioError, WorkloadError."""
    try:
        file = msgspec.convert(config, _File)
    except msgspec.ValidationError as error:
        raise ScenarioError(str(error)) from error
    return Scenario(name, file, workload_of(config, folder), config, folder)


def scenarios_shipped() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def _change(config: dict[str, Any], path: str, value: Any) -> None:
    at: Any = config
    *parents, last = path.split(".")
    try:
        for name in parents:
            at = at[int(name)] if isinstance(at, list) else at.setdefault(name, {})
        at[int(last) if isinstance(at, list) else last] = value
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise ScenarioError(f"a variant sets {path!r}, which is not in the scenario") from error
