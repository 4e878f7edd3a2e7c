"""Which replicas have room for whom: what each reported, what was placed since, and whose rows those are.

Rows yield in a replica's step to those of a better standing, so a request does not see the rows and prompts
of a worse one. KV memory does not yield: of that, and of the rows there can be at all, those that yield leave
a part free.
"""

from collections.abc import KeysView

from policy.flow import BATCH, Flow
from policy.placement import LONG_PROMPT_TOKENS, WATERMARK_BLOCKS, Replica, blocks_needed
from policy.waiting import Waiting

# The standing of a flow's rows: each yields to those before it.
WITHIN = 0  # its share of the fleet
OVER = 1
YIELDS_TO_ALL = 2  # batch


# So many prompts may be left behind by better ones. More of them are those of flows that were within their
# share when they were placed: without a bound a whole fleet beyond its capacity would end up there.
MOST_BEHIND = 3


class Room:
    """One replica. `parts`: rows and prompt tokens still to compute of each flow that was placed there. By
    standing: rows that yield to it, and prompt tokens that do not."""

    __slots__ = (
        "free_blocks",
        "limit",
        "most_free",
        "parts",
        "pending_tokens",
        "prompts_behind",
        "replica",
        "rows",
        "tokens_before",
        "yielding_rows",
    )

    def __init__(self, replica: Replica) -> None:
        self.parts: dict[Flow, list[int]] = {}
        self.yielding_rows = [0, 0, 0]
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

    def tokens_seen(self, standing: int) -> int:
        """Prompt tokens to compute before one of this standing: whose they are is known of what was placed
        here, how many are left is reported."""
        if self.prompts_behind[standing] > MOST_BEHIND:
            return self.pending_tokens
        return min(self.tokens_before[standing], self.pending_tokens)

    def count(self, standing: int, rows: int, tokens: int, prompts: int) -> None:
        for better in range(standing):
            self.yielding_rows[better] += rows
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

    def has_blocks(self, waiting: Waiting, part: float) -> bool:
        """Whether KV fits; `part` of the memory is for it."""
        if not self.rows:
            return True
        blocks = blocks_needed(waiting.prompt_tokens + 1, self.replica.block_size)
        growth = self.rows + waiting.choices - 1 + WATERMARK_BLOCKS
        return self.free_blocks - blocks - growth >= (1 - part) * self.most_free

    def has_own_rows(self, waiting: Waiting, part: float, window_tokens: int) -> bool:
        """Whether an over-share flow may begin more here: it holds less than this part of the rows, up to a
        row more, and there are no prompts that would be computed before its own."""
        if not self.rows:
            return True
        own_rows = self.parts[waiting.flow][0] if waiting.flow in self.parts else 0
        has_turn = self.tokens_seen(OVER) < window_tokens
        return has_turn and own_rows + waiting.choices - 1 < part * self.limit


class Rooms:
    def __init__(self, *, window_tokens: int, yielding_part: float) -> None:
        self._window_tokens = window_tokens
        self._parts = (1.0, yielding_part, yielding_part)  # of rows and memory, by standing
        self._rooms: dict[str, Room] = {}
        # Where a small prompt could begin, by standing: a worse one never where a better one could not.
        self._open: tuple[dict[str, Room], ...] = ({}, {}, {})
        self._idle: dict[str, Room] = {}
        self._holders: dict[Flow, dict[str, Room]] = {}
        self._over: set[Flow] = set()
        self.capacity = 0  # rows that decode within the target latency, all together
        self.most_tokens = 0  # prompt and output that the largest replica can hold
        self.held: str | None = None  # kept for one request

    def __len__(self) -> int:
        return len(self._rooms)

    def __contains__(self, key: object) -> bool:
        return key in self._rooms

    def __getitem__(self, key: str) -> Room:
        return self._rooms[key]

    def keys(self) -> KeysView[str]:
        return self._rooms.keys()

    # -- replicas -----------------------------------------------------------------------------------------

    def update(self, replica: Replica) -> bool:
        """Whether anything may begin there."""
        room = self._rooms.get(replica.key)
        if room is None:
            room = self._rooms[replica.key] = Room(replica)
            self.most_tokens = max(self.most_tokens, replica.max_tokens)
        else:
            self.capacity -= room.limit
            had_tokens = room.replica.max_tokens
            room.told(replica)
            if replica.max_tokens != had_tokens:
                self._measure()
        self.capacity += room.limit
        if self.held == replica.key and not replica.takes_more:
            self.held = None
        self._sort(room)
        return replica.key in self._open[WITHIN]

    def gone(self, key: str) -> None:
        """Everything that was placed there has ended."""
        self.capacity -= self._rooms.pop(key).limit
        for rooms in (*self._open, self._idle):
            rooms.pop(key, None)
        if self.held == key:
            self.held = None
        self._measure()

    # -- requests -----------------------------------------------------------------------------------------

    def place(self, key: str, waiting: Waiting) -> None:
        room = self._rooms[key]
        blocks = blocks_needed(waiting.prompt_tokens + 1, room.replica.block_size)
        room.rows += waiting.choices
        room.pending_tokens += waiting.new_tokens
        room.free_blocks -= blocks + waiting.choices - 1
        self._hold(room, waiting.flow)
        self._count(room, waiting.flow, waiting.choices, waiting.new_tokens, 1)

    def adopt(self, key: str, waiting: Waiting) -> None:
        """It runs there, and its replica's rows are told with it: only whose they are is new."""
        room = self._rooms[key]
        self._hold(room, waiting.flow)
        self._count(room, waiting.flow, waiting.choices, 0, 0)

    def prefilled(self, key: str, waiting: Waiting) -> None:
        self._count(self._rooms[key], waiting.flow, 0, -waiting.new_tokens, -1)

    def ended(self, key: str, waiting: Waiting, *, was_prefilled: bool) -> None:
        """Frees nothing by itself: what is free, the replica says."""
        room, flow = self._rooms[key], waiting.flow
        left = (0, 0) if was_prefilled else (-waiting.new_tokens, -1)
        self._count(room, flow, -waiting.choices, *left)
        if not room.parts[flow][0]:
            del room.parts[flow], self._holders[flow][key]
            if not self._holders[flow]:
                del self._holders[flow]

    def flipped(self, flow: Flow, is_over: bool) -> None:
        """The flow is over its share from now on, or not any more."""
        before = self._standing(flow)
        (self._over.add if is_over else self._over.discard)(flow)
        after = self._standing(flow)
        for room in self._holders.get(flow, {}).values():
            rows, tokens, prompts = room.parts[flow]
            room.count(before, -rows, -tokens, -prompts)
            room.count(after, rows, tokens, prompts)
            self._sort(room)

    # -- choosing -----------------------------------------------------------------------------------------

    @property
    def free_rows(self) -> int:
        """That could decode within the target latency beside those that run."""
        return max(0, self.capacity - sum(room.rows for room in self._rooms.values()))

    def has_room(self, standing: int, *, idle_only: bool = False) -> bool:
        """Whether a small prompt of this standing could begin anywhere."""
        return bool(self._idle if idle_only else self._open[standing])

    def choose(
        self,
        waiting: Waiting,
        standing: int,
        *,
        idle_only: bool,
        may_use_held: bool,
        own_part: float = 1.0,
    ) -> str | None:
        """Of those with room: one of the prompt's own pool, then the least prefill before this one, then the
        most free KV. `idle_only`: only replicas that have nothing to do. `own_part`: of a replica's rows that
        the flow may hold."""
        is_long = waiting.prompt_tokens >= LONG_PROMPT_TOKENS
        part, window_tokens, choices = self._parts[standing], self._window_tokens, waiting.choices
        sees_own = standing >= self._standing(waiting.flow)  # it may begin as one of a better standing
        best: tuple[bool, int, int, str] | None = None
        for key, room in (self._idle if idle_only else self._open[standing]).items():
            cost = (
                room.replica.is_for_long_prompts != is_long,
                room.tokens_seen(standing),
                -room.free_blocks,
                key,
            )
            if (
                (best is None or cost < best)
                and (key != self.held or may_use_held)
                and waiting.prompt_tokens < room.replica.max_tokens
                and (choices == 1 or room.has_rows(choices, standing, part, window_tokens))
                and room.has_blocks(waiting, part)
                and (sees_own or room.own_tokens(waiting.flow) < window_tokens)
                and (own_part >= 1 or room.has_own_rows(waiting, own_part, window_tokens))
            ):
                best = cost
        return best[3] if best else None

    def hold_for(self, waiting: Waiting) -> None:
        """Keeps the replica on which it will find room soonest when nothing else is placed there."""
        fitting = [
            (-room.free_blocks, key)
            for key, room in self._rooms.items()
            if waiting.prompt_tokens < room.replica.max_tokens and room.replica.takes_more
        ]
        self.held = min(fitting)[1] if fitting else None

    # -- inside -------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        self.most_tokens = max((room.replica.max_tokens for room in self._rooms.values()), default=0)

    def _standing(self, flow: Flow) -> int:
        if flow.klass == BATCH:
            return YIELDS_TO_ALL
        return OVER if flow in self._over else WITHIN

    def _hold(self, room: Room, flow: Flow) -> None:
        if flow not in room.parts:
            room.parts[flow] = [0, 0, 0]
            self._holders.setdefault(flow, {})[room.replica.key] = room

    def _count(self, room: Room, flow: Flow, rows: int, tokens: int, prompts: int) -> None:
        part = room.parts[flow]
        part[0] += rows
        part[1] += tokens
        part[2] += prompts
        room.count(self._standing(flow), rows, tokens, prompts)
        self._sort(room)

    def _sort(self, room: Room) -> None:
        key = room.replica.key
        is_open = room.replica.takes_more
        for standing, rooms in enumerate(self._open):
            is_open = is_open and room.has_rows(1, standing, self._parts[standing], self._window_tokens)
            if is_open:
                rooms[key] = room
            else:
                rooms.pop(key, None)
        if room.replica.takes_more and not room.rows:
            self._idle[key] = room
        else:
            self._idle.pop(key, None)
