"""Dispatchers around one lease, on one clock: messages come late or never, processes sleep."""

import heapq
from collections.abc import Callable
from random import Random

from dispatch.lease import Claim, Grant, Lease, LeaseTimes

TIMES = LeaseTimes()
ANSWER_MS = 500
_FAULTS = ("sleep", "cut", "outage", "freeze", "mend", "kill", "tell", "wipe", "jump", "calm")


class Store:
    """As `dispatch.lease_store` has it in Lua; `shift_ms` is what its clock jumped."""

    def __init__(self) -> None:
        self.holder, self.term, self.expires_ms = "", 0, 0.0
        self.last_term = 0
        self.shift_ms = 0.0
        self.thaws_ms = 0.0  # until then it stands still; what it was asked meanwhile it does afterwards

    def wipe(self) -> None:
        self.holder, self.last_term = "", 0

    def claim(self, name: str, claim: Claim, true_ms: float) -> Grant:
        now_ms = true_ms + self.shift_ms
        if self.holder and now_ms >= self.expires_ms:
            self.holder = ""
        if self.holder and self.holder != name:
            return Grant(False, self.term, self.holder, int(self.expires_ms - now_ms))
        own = self.holder == name
        if not (own and self.term >= claim.seen_term):
            if not own and self.last_term > claim.takes_after:
                return Grant(False, self.last_term, "", 0)
            self.last_term = max(self.last_term + 1, claim.seen_term + 1, int(now_ms))
            self.holder, self.term = name, self.last_term
        self.expires_ms = now_ms + TIMES.valid_ms
        return Grant(True, self.term, name, TIMES.valid_ms)


class Member:
    """One dispatcher: its lease, and when it last had the store's word."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.lease = Lease(world.now)
        self.is_reachable = True
        self.alive = True
        self.sleeps_until = 0.0
        self._question = 0
        self._is_asking = False
        self._asked_ms = 0.0
        self._told_ms = -1e9  # when it asked what was answered last
        world.after(0, self._run)

    @property
    def acts(self) -> bool:
        """Whether it would act on a message now."""
        return self.alive and not self.is_asleep and self.lease.may_act(self.world.now)

    @property
    def is_sure(self) -> bool:
        """It has the store's word for acting, not only the store's silence."""
        return self.world.now - self._told_ms < TIMES.valid_ms

    @property
    def is_asleep(self) -> bool:
        return self.sleeps_until > self.world.now

    def _awake(self, action: Callable[[], None]) -> None:
        if self.is_asleep:  # what is due meanwhile happens then, in any order
            self.world.at(self.sleeps_until + self.world.random.random(), lambda: self._awake(action))
        elif self.alive:
            action()

    def _run(self) -> None:
        if self.alive:
            self._awake(self._ask)
            self.world.after(10, self._run)

    def _ask(self) -> None:
        world = self.world
        if self._is_asking or world.now < self.lease.next_ms:
            return
        self._is_asking, self._question, self._asked_ms = True, self._question + 1, world.now
        claim, question = self.lease.asks(world.now), self._question
        if self.is_reachable:
            world.after(world.delay(), lambda: self._asked(claim, question))
        world.after(ANSWER_MS, lambda: self._awake(lambda: self._answered(None, question)))

    def _asked(self, claim: Claim, question: int) -> None:
        if (thaws_ms := self.world.store.thaws_ms) > self.world.now:
            self.world.at(thaws_ms + self.world.random.random(), lambda: self._asked(claim, question))
            return
        grant = self.world.store.claim(self.name, claim, self.world.now)
        if self.is_reachable:
            self.world.after(self.world.delay(), lambda: self._awake(lambda: self._answered(grant, question)))

    def _answered(self, grant: Grant | None, question: int) -> None:
        if question != self._question or not self._is_asking:
            return
        self._is_asking = False
        was = (self.lease.is_active, self.lease.term)
        if grant is None:
            self.lease.failed(self.world.now)
        else:
            self.lease.granted(grant, self.world.now)
            self._told_ms = self._asked_ms
        if self.lease.is_active and was != (True, self.lease.term):
            self.world.became_active(self)


class World:
    def __init__(self, seed: int, members: int = 3) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.slowest_ms = self.random.choice([1, 20, 600])
        self.store = Store()
        self.owners: dict[int, str] = {}  # of terms
        self.is_strict = True  # no jump of the store's clock, no loss of its data: nobody acts beside another
        self.members = [Member(self, f"d{n}") for n in range(members)]

    def delay(self) -> float:
        return self.random.uniform(0, self.slowest_ms)

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (max(when, self.now), self._count, action))

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay_ms, action)

    def run(self, ms: float) -> None:
        until = self.now + ms
        while self._due and self._due[0][0] <= until:
            self.now, _, action = heapq.heappop(self._due)
            action()
            self.check()
        self.now = until

    def became_active(self, member: Member) -> None:
        owner = self.owners.setdefault(member.lease.term, member.name)
        assert owner == member.name, f"term {member.lease.term} is {owner}'s and {member.name}'s"

    def check(self) -> None:
        acting = [m for m in self.members if m.lease.is_active and not m.is_asleep and m.alive]
        if len(acting) < 2:
            return
        acting = [m for m in acting if m.acts]
        assert len({m.lease.term for m in acting}) == len(acting), "two act under one term"
        if self.is_strict:
            assert sum(m.is_sure for m in acting) < 2, "two act while both hold the lease"

    def fault(self) -> None:
        member, random = self.random.choice(self.members), self.random
        match random.choice(_FAULTS):
            case "sleep":
                member.sleeps_until = self.now + random.choice([300, 1_600, 5_000])
            case "cut":
                member.is_reachable = False
            case "outage":
                for each in self.members:
                    each.is_reachable = False
            case "freeze":
                self.store.thaws_ms = self.now + random.choice([300, 1_600, 5_000])
            case "mend":
                for each in self.members:
                    each.is_reachable = True
            case "kill":
                member.alive = False
                self.members[self.members.index(member)] = Member(self, f"{member.name}'")
            case "tell" if not member.is_asleep:
                member.lease.heard(max(m.lease.term for m in self.members), self.now)
            case "wipe" if random.random() < 0.3:
                self.is_strict = False
                self.store.wipe()
            case "jump" if random.random() < 0.3:
                self.is_strict = False
                self.store.shift_ms += random.choice([-4_000, -700, 700, 4_000])

    def heal(self) -> None:
        self.slowest_ms = 20
        for member in self.members:
            member.is_reachable, member.sleeps_until = True, 0.0
