"""A replica's KV, in tokens: who fits, and who gives way when there is no room.

Half a block for each row is what rounding to blocks costs. A row that gives way is computed anew.
"""

from typing import NamedTuple

from fleetsim.prefix_cache import PrefixCache
from fleetsim.replica_model import ReplicaModel
from fleetsim.rows import Lane, Row
from fleetsim.step_shares import StepShares
from policy.flow import Flow

WATERMARK_BLOCKS = 2


class Tally(NamedTuple):
    decoding: int  # rows
    rows: int
    context: int  # tokens


class StepMemory:
    def __init__(self, lanes: dict[Flow, Lane], shares: StepShares, model: ReplicaModel) -> None:
        self.pending_tokens = 0  # of prompts, to be computed
        self.preemptions = 0
        self._lanes, self._shares, self._model = lanes, shares, model
        self.cache = PrefixCache()
        self._entered = 0
        self._watermark_tokens = model.block_tokens * max(
            WATERMARK_BLOCKS, model.kv_tokens // model.block_tokens // 64
        )

    def tally(self) -> Tally:
        """Of all rows that hold KV."""
        decoding = prompts = context = 0
        for lane in self._lanes.values():
            decoding += len(lane.rows)
            prompts += len(lane.begun)
            context += lane.context + lane.prompts_context
        return Tally(decoding, decoding + prompts, context)

    def free_tokens(self, tally: Tally) -> int:
        return self._model.kv_tokens - tally.context - tally.rows * self._model.block_tokens // 2

    def begin(self, lane: Lane, row: Row) -> None:
        """It holds KV from now on; what the prefix cache has of it need not be computed."""
        self._entered += 1
        row.entered = self._entered
        if row.prefix and row.left_tokens == row.need_tokens:
            found = self.cache.match(row.prefix, row.need_tokens - 1)
            row.cached_tokens = max(row.cached_tokens, found)
            row.left_tokens -= found
            row.charged_tokens = max(row.charged_tokens, found)
            self.pending_tokens -= found
        lane.begun.append(row)
        lane.prompts_context += row.need_tokens

    def computed(self, row: Row) -> None:
        if row.prefix:
            self.cache.add(row.prefix)
            self.cache.shrink(max(self.free_tokens(self.tally()), 0))

    def enter(self, lane: Lane, row: Row, yielding: frozenset[Flow]) -> bool:
        """Whether there is room; `yielding` are flows whose rows give way to make it."""
        tally = self.tally()
        rows = tally.rows
        if rows >= self._model.max_rows:
            return False
        needed = row.need_tokens + 1
        if rows:
            needed += max(self._watermark_tokens, rows * self._model.block_tokens)
        short = needed - self.free_tokens(tally)
        if short <= 0:
            return True
        victims = self._victims(yielding)
        room = sum(tokens for _, _, tokens in victims)
        if room < short:
            return False
        for victim_lane, victim, tokens in victims:
            self._give_way(victim_lane, victim)
            short -= tokens
            if short <= 0:
                break
        return True

    def make_room(self) -> Tally:
        """For one more token of each decoding row."""
        tally = self.tally()
        while tally.decoding > self.free_tokens(tally) and tally.rows > 1:
            lane, row, _ = self._victims(frozenset(self._lanes))[0]
            self._give_way(lane, row)
            tally = self.tally()
        return tally

    def _victims(self, flows: frozenset[Flow]) -> list[tuple[Lane, Row, int]]:
        """Over-share rows first, then batch, then those of the most over-served flow, the newest first."""
        over, time = self._shares.over, self._shares.time
        rows = [
            (lane, row, tokens)
            for flow, lane in self._lanes.items()
            if flow in flows
            for row, tokens in lane.held()
        ]
        rows.sort(
            key=lambda r: (r[0].flow in over, r[0].is_batch, time(r[0].flow), r[1].entered), reverse=True
        )
        return rows

    def _give_way(self, lane: Lane, row: Row) -> None:
        if row.left_tokens:
            lane.begun.remove(row)
            lane.prompts_context -= row.need_tokens
            self.pending_tokens -= row.left_tokens
        else:
            lane.leave(row)
        row.preemptions += 1
        row.left_tokens = row.need_tokens
        self.pending_tokens += row.left_tokens
        lane.waiting.appendleft(row)
        self.preemptions += 1
