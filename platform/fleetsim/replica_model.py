"""What a replica is like: the costs of its steps, its memory, its price. Three kinds.

`spec` satisfies the specification's figures (2,000 output and 10,000 prompt tokens a second, added as machine
time, at an inter-token target of 40 ms). `physical` is a roofline of the same model on four accelerators: a
step reads all weights and the KV of its rows once, and computes two operations for each weight and token.
`measured` is a file that `fleetsim.calibrate` wrote from steps of our own worker.
"""

import json
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

from policy.pacing import IDLE_FACTOR
from policy.step_cost import StepCost

SMALLER_BY = 4
MODELS = ("spec", "physical", "measured")


@dataclass(frozen=True, slots=True)
class ReplicaModel:
    name: str
    cost: StepCost
    kv_tokens: int
    max_rows: int
    target_ms: float  # inter-token latency
    margin_ms: float  # that steps stay below it
    min_prefill_tokens: int
    max_prefill_tokens: int  # of one step
    # What one replica does when it does nothing else: the specification's unit of utilisation.
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    usd_per_hour: float
    block_tokens: int = 16

    @property
    def allowed_ms(self) -> float:
        """Of a step that decodes."""
        return self.target_ms - self.margin_ms

    @property
    def idle_ms(self) -> float:
        """Of a step while no stream waits for its next token."""
        return IDLE_FACTOR * self.target_ms - self.margin_ms

    def smaller(self) -> "ReplicaModel":
        """The smaller model on the same machine: a quarter of the weights, so a quarter of all costs."""
        cost = StepCost(*[part / SMALLER_BY for part in astuple(self.cost)])
        return replace(
            self,
            name=f"{self.name}, smaller",
            cost=cost,
            output_tokens_per_s=self.output_tokens_per_s * SMALLER_BY,
            prompt_tokens_per_s=self.prompt_tokens_per_s * SMALLER_BY,
        )

    def row_limit(self, mean_context_tokens: float) -> int:
        """Rows that decode within the target beside the least of prompt tokens: as `StepPacer.row_limit`, of
        costs that are known."""
        cost = self.cost
        left_ms = self.allowed_ms - cost.base_ms - cost.token_ms * self.min_prefill_tokens
        limit = int(left_ms / (cost.row_ms + cost.context_ms * mean_context_tokens))
        return min(max(1, limit), self.max_rows)


SPEC = ReplicaModel(
    name="spec",
    cost=StepCost(base_ms=14.0, row_ms=0.132, token_ms=0.1, context_ms=30e-6),
    kv_tokens=700_000,
    max_rows=500,
    target_ms=40.0,
    margin_ms=1.0,
    min_prefill_tokens=64,
    max_prefill_tokens=2_048,
    output_tokens_per_s=2_000,
    prompt_tokens_per_s=10_000,
    usd_per_hour=16.0,
)


@dataclass(frozen=True, slots=True)
class Hardware:
    """A tensor-parallel group. Defaults: 70 billion weights in 8 bits over four accelerators of 3.35 TB/s and
    0.99 Pflop/s dense (their data sheet), with the parts of both that engines reach."""

    accelerators: int = 4
    bandwidth_bytes_per_s: float = 3.35e12
    flops_per_s: float = 0.99e15
    bandwidth_reached: float = 0.6
    flops_reached: float = 0.35
    weights: float = 70e9
    bytes_per_weight: float = 1.0
    kv_bytes_per_token: float = 2 * 80 * 8 * 128 * 2  # keys and values, layers, KV heads, their size, 16 bits
    overhead_ms: float = 4.0  # launches, sampling and all-reduces of 80 layers
    row_overhead_ms: float = 0.05  # sampling; a row's arithmetic hides behind the reading of the weights

    def cost(self) -> StepCost:
        bandwidth = self.accelerators * self.bandwidth_bytes_per_s * self.bandwidth_reached
        flops = self.accelerators * self.flops_per_s * self.flops_reached
        return StepCost(
            base_ms=self.overhead_ms + 1000 * self.weights * self.bytes_per_weight / bandwidth,
            row_ms=self.row_overhead_ms,
            token_ms=1000 * 2 * self.weights / flops,
            context_ms=1000 * self.kv_bytes_per_token / bandwidth,
        )


def physical(hardware: Hardware) -> ReplicaModel:
    """Memory and price are the specification's; utilisation is counted in what this model itself can do."""
    cost = hardware.cost()
    return ReplicaModel(
        name="physical",
        cost=cost,
        kv_tokens=SPEC.kv_tokens,
        max_rows=SPEC.max_rows,
        target_ms=SPEC.target_ms,
        margin_ms=SPEC.margin_ms,
        min_prefill_tokens=SPEC.min_prefill_tokens,
        max_prefill_tokens=SPEC.max_prefill_tokens,
        output_tokens_per_s=SPEC.output_tokens_per_s,
        prompt_tokens_per_s=SPEC.prompt_tokens_per_s,
        usd_per_hour=SPEC.usd_per_hour,
    )


def replica_model_write(model: ReplicaModel, path: Path) -> None:
    path.write_text(json.dumps(asdict(model), indent=2) + "\n")


def replica_model_read(path: Path) -> ReplicaModel:
    """Raises OSError; ValueError for a file that is none of `replica_model_write`'s."""
    try:
        fields = json.loads(path.read_text())
        return ReplicaModel(**{**fields, "cost": StepCost(**fields["cost"])})
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no replica model: {error!r}") from error


def replica_model(name: str, measured: Path | None = None) -> ReplicaModel:
    """Raises ValueError for an unknown name, or for `measured` without a file."""
    if name == "spec":
        return SPEC
    if name == "physical":
        return physical(Hardware())
    if name == "measured":
        if measured is None:
            raise ValueError("the measured replica model needs its file: python -m fleetsim.calibrate")
        return replica_model_read(measured)
    raise ValueError(f"no replica model {name!r}; there are {', '.join(MODELS)}")
