"""One replica's room: what it reported, what was placed there since, and whose rows those are.

Rows yield in a replica's step to those of a better standing, so a request does not see the rows and prompts
of a worse one. They also give way in memory, but that costs their flow what they have computed: so of KV, and
of the rows there can be at all, those that yield leave a part free.
"""

from policy.flow import Flow
from policy.placement import WATERMARK_BLOCKS, Replica, blocks_needed
from policy.step_cost import StepCost, chunk_pairs
from policy.waiting import Waiting
from policy.work import PROMPT_TOKEN_MS, STEP_MS

# The standing of a flow's rows: each yields to those before it.
WITHIN = 0  # its share of the fleet
OVER = 1
YIELDS_TO_ALL = 2  # batch

# What room a request may take, which depends on what its flow has.
SHARE = 0  # less than its share: whatever there is
OWN = 1  # it wants more than its share and has less than is its own: where it holds less than its part
MORE = 2  # what yields to the others
LEFT = 3  # what all others leave
IDLE = 4  # it has all it may: replicas that have nothing to do
LANES = (SHARE, OWN, MORE, LEFT, IDLE)
STANDINGS = (WITHIN, WITHIN, OVER, YIELDS_TO_ALL, YIELDS_TO_ALL)  # of rows that begin so

# So many prompts may be left behind by better ones. More of them are those of flows that were within their
# share when they were placed: without a bound a whole fleet beyond its capacity would end up there.
MOST_BEHIND = 3


UNKNOWN_COST = StepCost(0.0, 0.0, PROMPT_TOKEN_MS, 0.0)
LEAST_CHUNK_TOKENS = 64  # of prompts, that a step computes however many rows decode
# Who decodes beside the new row waits longer for each token: of that, this part counts, for so many tokens.
ROWS_WORTH, ROWS_TOKENS = 0.05, 256
OVER_TARGET_MS = 1e6  # where steps would last longer than they are to


class Room:
    """One replica. `parts`: of each flow that was placed there its rows, prompt tokens still to compute,
    prompts with any, and blocks of its prompts. By standing: rows and blocks that yield to it, and prompt
    tokens that do not."""

    __slots__ = (
        "_cost",
        "_least_ms",
        "_row_ms",
        "_spare_ms",
        "free_blocks",
        "limit",
        "most_free",
        "parts",
        "pending_tokens",
        "prompts_behind",
        "replica",
        "rows",
        "tokens_before",
        "yielding_blocks",
        "yielding_rows",
    )

    def __init__(self, replica: Replica) -> None:
        self.parts: dict[Flow, list[int]] = {}
        self.yielding_rows = [0, 0, 0]
        self.yielding_blocks = [0, 0, 0]
        self.tokens_before = [0, 0, 0]
        self.prompts_behind = [0, 0, 0]
        self.most_free = 0  # blocks that were ever free: all of them, as far as is known
        self.told(replica)

    def told(self, replica: Replica) -> None:
        self.replica = replica
        self.limit = replica.row_limit or replica.max_rows  # rows that decode within the target latency
        self.rows = replica.rows
        self.pending_tokens = replica.pending_prefill_tokens
        self.free_blocks = replica.free_blocks
        self.most_free = max(self.most_free, replica.free_blocks)
        self._predict()

    def _predict(self) -> None:
        """What its steps are made of."""
        self._cost = cost = self.replica.cost or UNKNOWN_COST
        used_tokens = (self.most_free - self.free_blocks) * self.replica.block_size
        self._row_ms = cost.decode_ms(max(0, used_tokens) / max(self.rows, 1))
        self._spare_ms = max(STEP_MS - cost.base_ms, self.limit * self._row_ms)
        self._least_ms = max(LEAST_CHUNK_TOKENS * cost.token_ms, 1e-3)

    @property
    def placed_tokens(self) -> int:
        """Prompt tokens that were sent there and not reported as computed, in full."""
        return self.tokens_before[YIELDS_TO_ALL]

    def score_ms(
        self, waiting: Waiting, standing: int, cached_tokens: float, *, is_stale: bool, busy: float = 0.0
    ) -> float:
        """Predicted milliseconds until its first token, and what it costs others: those that decode there,
        and who comes while its prompt is computed. `busy`: how likely that is, the part of replicas that
        compute prompts now."""
        cost, rows = self._cost, self.rows - self.yielding_rows[standing]
        before = self.tokens_before[standing] if is_stale else self.tokens_seen(standing)
        new = max(1, waiting.prompt_tokens - int(cached_tokens))
        prefill_ms = cost.token_ms * (before + new)
        own_ms = cost.token_ms * new
        if cost.pair_ms:
            pairs_ms = cost.pair_ms * chunk_pairs(new, waiting.prompt_tokens - new)
            prefill_ms, own_ms = prefill_ms + pairs_ms, own_ms + pairs_ms
        # Of every step prompts get what decodes leave, and a few tokens whatever they leave.
        decode_ms = self._row_ms * rows
        spare_ms = max(self._spare_ms - decode_ms, self._least_ms)
        stretch = (cost.base_ms + decode_ms + spare_ms) / spare_ms
        token_ms = cost.row_ms + cost.context_ms * waiting.prompt_tokens
        score_ms = stretch * prefill_ms + ROWS_WORTH * min(waiting.expected_tokens, ROWS_TOKENS) * token_ms
        score_ms += busy * own_ms
        return score_ms + OVER_TARGET_MS if rows + waiting.choices > self.limit else score_ms

    def tokens_seen(self, standing: int) -> int:
        """Prompt tokens to compute before one of this standing: whose they are is known of what was placed
        here, how many are left is reported."""
        if self.prompts_behind[standing] > MOST_BEHIND:
            return self.pending_tokens
        return min(self.tokens_before[standing], self.pending_tokens)

    def count(self, standing: int, rows: int, tokens: int, prompts: int, blocks: int) -> None:
        for better in range(standing):
            self.yielding_rows[better] += rows
            self.yielding_blocks[better] += blocks
        for same_or_worse in range(standing, YIELDS_TO_ALL + 1):
            self.tokens_before[same_or_worse] += tokens
        for better in range(standing):
            self.prompts_behind[better] += prompts

    def has_rows(self, choices: int, standing: int, part: float, window_tokens: int) -> bool:
        """Whether so many rows more may begin; `part` of the rows are for this standing."""
        if not self.rows:  # it takes whatever it can serve: what is near the bound must not wait for ever
            return True
        return (
            self.tokens_seen(standing) < window_tokens
            and self.rows - self.yielding_rows[standing] + choices <= max(1.0, part * self.limit)
            and self.rows + choices <= max(1.0, part * self.replica.max_rows)
        )

    def own_tokens(self, flow: Flow) -> int:
        """Prompt tokens of the flow itself to compute."""
        part = self.parts.get(flow)
        return min(part[1], self.pending_tokens) if part else 0

    def has_blocks(self, waiting: Waiting, standing: int, part: float, *, is_stale: bool = False) -> bool:
        """Whether KV fits; `part` of the memory is for it. Of rows that yield it may have their prompts'.
        `is_stale`: nobody says what comes free, so all of it has to fit as it is."""
        if not self.rows:
            return True
        grown = waiting.expected_tokens if is_stale else 0
        blocks = blocks_needed(waiting.prompt_tokens + 1 + grown, self.replica.block_size)
        growth = self.rows + waiting.choices - 1 + WATERMARK_BLOCKS
        free_blocks = self.free_blocks + self.yielding_blocks[standing]
        return free_blocks - blocks - growth >= (1 - part) * self.most_free

    def has_turn(self, window_tokens: int) -> bool:
        """Whether a flow over its share would have its turn: no prompts would be computed before its own."""
        return not self.rows or self.tokens_seen(OVER) < window_tokens

    def has_own_rows(self, waiting: Waiting, part: float) -> bool:
        """Whether an over-share flow may begin more here: it holds less than this part of the rows, up to a
        row more."""
        if not self.rows:
            return True
        own_rows = self.parts[waiting.flow][0] if waiting.flow in self.parts else 0
        return own_rows + waiting.choices - 1 < part * self.limit
