"""One rank's part of a model: its slice of every layer, and its slice of the vocabulary.

Which logits are wanted is known to rank 0 alone, and what it does with them may fail there alone. So the
others compute hidden states with every plan, and logits only when rank 0 asks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from gpuworker.engine.loader import Weights
from gpuworker.engine.model import LlamaModel
from gpuworker.engine.model_runner import DTYPES, ModelRunner
from gpuworker.engine.plan import StepPlan
from gpuworker.engine.tensor_parallel.collectives import Collectives, RankLost
from gpuworker.engine.tensor_parallel.messages import Load
from gpuworker.engine.tensor_parallel.sharding import ShardedWeights, config_shard
from gpuworker.families.config import config_load


class ShardModel(LlamaModel):
    def __init__(self, load: Load, collectives: Collectives) -> None:
        """Raises UnsupportedModel or BadWeights."""
        folder = Path(load.folder)
        config = config_load(folder)
        weights = Weights(folder, config, DTYPES[load.dtype])
        super().__init__(
            config_shard(config, load.ranks),
            ShardedWeights(weights, config, rank=load.rank, ranks=load.ranks),
            max_positions=load.max_context_tokens,
            all_reduce=collectives.all_reduce,
            gather_logits=collectives.gather,
        )
        self._collectives = collectives

    def logits_help(self, rows: int) -> None:
        """This rank's part, when rank 0 asks for it."""
        hidden = torch.empty(rows, self.config.hidden_size, dtype=self.dtype)
        super().logits(self._collectives.broadcast(hidden))

    @contextmanager
    def in_step(self, plan: StepPlan) -> Iterator[None]:
        """Around the forward pass of a plan. If it raises on this rank, the sums that it still owes the
        others are made with NaN: then it fails on all ranks, and each goes on to try the same halves."""
        owed = self._collectives.sums_made + 2 * self.config.layers
        try:
            yield
        except RankLost:
            raise
        except Exception:
            tokens = sum(len(row.tokens) for row in plan.rows)
            nothing = torch.full((tokens, self.config.hidden_size), torch.nan, dtype=self.dtype)
            while self._collectives.sums_made < owed:
                self._collectives.all_reduce(nothing)
            raise


class LeadModel(ShardModel):
    """Rank 0's."""

    def __init__(self, load: Load, collectives: Collectives, ask: Callable[[int], None]) -> None:
        """`ask(rows)` makes every other rank call `logits_help`."""
        super().__init__(load, collectives)
        self._ask = ask

    def logits(self, hidden: Tensor) -> Tensor:
        """Raises RankLost for any failure: the others wait in the middle of it."""
        if not len(hidden):
            return hidden.new_empty(0, self.config.vocab_size, dtype=torch.float32)
        try:
            self._ask(len(hidden))
            self._collectives.broadcast(hidden.contiguous())
            return super().logits(hidden)[:, : self.config.vocab_size]
        except RankLost:
            raise
        except Exception as error:
            raise RankLost(f"the head failed on rank 0: {error!r}") from error


def runner_build(model: ShardModel, load: Load) -> ModelRunner:
    return ModelRunner(
        model,
        blocks=load.blocks,
        host_blocks=load.host_blocks,
        max_rows=load.max_rows,
        max_context_tokens=load.max_context_tokens,
    )
