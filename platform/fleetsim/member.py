"""A replica of a fleet, and how the queue sees it: its report, and what is on its way there."""

from dataclasses import dataclass

from fleetsim.replica import Replica
from policy import placement


@dataclass(slots=True)
class Member:
    """A replica and what the queue was told of it."""

    replica: Replica
    zone: int
    is_up: bool = True
    placed: int = 0  # rows sent there that have not ended
    unseen_tokens: int = 0  # prompt tokens of rows that are on their way

    def view(self) -> placement.Replica:
        """As of now."""
        replica, model = self.replica, self.replica.model
        free_tokens = replica.free_tokens - self.unseen_tokens
        return placement.Replica(
            key=replica.key,
            rows=self.placed,
            max_rows=model.max_rows,
            max_tokens=model.kv_tokens,
            pending_prefill_tokens=replica.memory.pending_tokens + self.unseen_tokens,
            free_blocks=max(free_tokens, 0) // model.block_tokens,
            block_size=model.block_tokens,
            row_limit=replica.row_limit,
            cost=model.cost,
        )
