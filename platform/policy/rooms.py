"""Which replicas have room for whom, and which of them a request begins on.

What each has room for is `room.Room`'s affair. Kept here is where a small prompt could begin at all, so that
most questions end without looking at replicas.
"""

from collections.abc import KeysView
from random import Random

from policy import router
from policy.flow import BATCH, Flow
from policy.placement import Replica, blocks_needed
from policy.room import (
    IDLE,
    LANES,
    LEFT,
    MORE,
    OVER,
    OWN,
    SHARE,
    STANDINGS,
    WITHIN,
    YIELDS_TO_ALL,
    Room,
)
from policy.router_index import PrefixHolders
from policy.router_ring import Ring
from policy.waiting import Waiting


class Rooms:
    """`rng` draws among replicas that are about as good."""

    def __init__(self, *, window_tokens: int, yielding_part: float, rng: Random) -> None:
        self._window_tokens, self._rng = window_tokens, rng
        self.prefixes = PrefixHolders()
        self._ring = Ring()
        self._parts = (1.0, yielding_part, yielding_part)  # of rows and memory, by standing
        self._rooms: dict[str, Room] = {}
        # Where a small prompt could begin, by lane.
        self._open: tuple[dict[str, Room], ...] = tuple({} for _ in LANES)
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
            self._ring.add(replica.key)
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
        return replica.key in self._open[SHARE]

    def gone(self, key: str) -> None:
        """Everything that was placed there has ended."""
        self.capacity -= self._rooms.pop(key).limit
        self.prefixes.gone(key)
        self._ring.discard(key)
        for rooms in self._open:
            rooms.pop(key, None)
        if self.held == key:
            self.held = None
        self._measure()

    # -- requests -----------------------------------------------------------------------------------------

    def place(self, key: str, waiting: Waiting) -> None:
        room = self._rooms[key]
        blocks = self._blocks(room, waiting)
        room.rows += waiting.choices
        room.pending_tokens += waiting.new_tokens
        room.free_blocks -= blocks + waiting.choices - 1
        self._hold(room, waiting.flow)
        self._count(room, waiting.flow, waiting.choices, waiting.new_tokens, 1, blocks)

    def adopt(self, key: str, waiting: Waiting) -> None:
        """It runs there, and its replica's rows are told with it: only whose they are is new."""
        room = self._rooms[key]
        self._hold(room, waiting.flow)
        self._count(room, waiting.flow, waiting.choices, 0, 0, self._blocks(room, waiting))

    def prefilled(self, key: str, waiting: Waiting) -> None:
        self._count(self._rooms[key], waiting.flow, 0, -waiting.new_tokens, -1, 0)

    def ended(self, key: str, waiting: Waiting, *, was_prefilled: bool) -> None:
        """Frees nothing by itself: what is free, the replica says."""
        room, flow = self._rooms[key], waiting.flow
        left = (0, 0) if was_prefilled else (-waiting.new_tokens, -1)
        self._count(room, flow, -waiting.choices, *left, -self._blocks(room, waiting))
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
            rows, tokens, prompts, blocks = room.parts[flow]
            room.count(before, -rows, -tokens, -prompts, -blocks)
            room.count(after, rows, tokens, prompts, blocks)
            self._sort(room)

    # -- choosing -----------------------------------------------------------------------------------------

    @property
    def free_rows(self) -> int:
        """That could decode within the target latency beside those that run."""
        return max(0, self.capacity - sum(room.rows for room in self._rooms.values()))

    def open_lanes(self) -> list[int]:
        """In which a small prompt could begin somewhere."""
        return [lane for lane in LANES if self._open[lane]]

    def has_room(self, lane: int) -> bool:
        return bool(self._open[lane])

    def choose(
        self, waiting: Waiting, lane: int, now_ms: float, *, may_use_held: bool, own_part: float = 1.0
    ) -> str | None:
        """Of those with room: one of the prompt's own pool, then by predicted milliseconds (`policy.router`).
        `own_part`: of a replica's rows that the flow may hold."""
        standing = STANDINGS[lane]
        part, window_tokens, choices = self._parts[standing], self._window_tokens, waiting.choices
        own_standing = self._standing(waiting.flow)
        sees_own = standing >= own_standing  # it may begin as one of a better standing
        stale_ms = now_ms - router.STALE_MS

        def fits(one: router.Scored) -> bool:
            room = one.room
            return (
                (one.key != self.held or may_use_held)
                and waiting.prompt_tokens < room.replica.max_tokens
                and (choices == 1 or room.has_rows(choices, standing, part, window_tokens))
                and room.has_blocks(
                    waiting,
                    max(standing, own_standing),
                    part,
                    is_stale=room.replica.reported_ms < stale_ms,
                )
                and (sees_own or room.own_tokens(waiting.flow) < window_tokens)
                and (own_part >= 1 or room.has_own_rows(waiting, own_part))
            )

        hits = self.prefixes.hits(waiting.chains, now_ms) if waiting.chains else {}
        # Where nothing is held anywhere, the prompt takes as much of everybody.
        busy = (
            sum(room.pending_tokens > 0 for room in self._rooms.values()) / len(self._rooms) if hits else 0.0
        )
        scored = router.scores(self._open[lane], waiting, standing, hits, now_ms, busy=busy)
        if not scored and router.are_suspect(self._rooms, now_ms):
            rooms = router.suspects(self._open[lane], waiting)
            scored = router.scores(rooms, waiting, standing, hits, now_ms, busy=busy, with_suspects=True)
        tied = router.best_of(scored, fits)
        if not tied:
            return None
        if tied[0].key in hits:
            return tied[0].key
        if waiting.chains and not hits:
            rows = sum(room.rows for room in self._rooms.values())
            return router.home(tied, self._ring, waiting, fits, rows / len(self._rooms)).key
        return router.draw(tied, fits, self._rng).key

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

    def _blocks(self, room: Room, waiting: Waiting) -> int:
        return blocks_needed(waiting.prompt_tokens + 1, room.replica.block_size)

    def _hold(self, room: Room, flow: Flow) -> None:
        if flow not in room.parts:
            room.parts[flow] = [0, 0, 0, 0]
            self._holders.setdefault(flow, {})[room.replica.key] = room

    def _count(self, room: Room, flow: Flow, rows: int, tokens: int, prompts: int, blocks: int) -> None:
        part = room.parts[flow]
        part[0] += rows
        part[1] += tokens
        part[2] += prompts
        part[3] += blocks
        room.count(self._standing(flow), rows, tokens, prompts, blocks)
        self._sort(room)

    def _sort(self, room: Room) -> None:
        takes, window_tokens = room.replica.takes_more, self._window_tokens
        within, over, left = (
            takes and room.has_rows(1, standing, part, window_tokens)
            for standing, part in enumerate(self._parts)
        )
        over, left = within and over, within and over and left  # a worse one never where a better could not
        self._file(room, SHARE, within)
        self._file(room, OWN, within and room.has_turn(window_tokens))
        self._file(room, MORE, over)
        self._file(room, LEFT, left)
        self._file(room, IDLE, takes and not room.rows)

    def _file(self, room: Room, lane: int, is_open: bool) -> None:
        if is_open:
            self._open[lane][room.replica.key] = room
        else:
            self._open[lane].pop(room.replica.key, None)
