"""A fleet of modelled replicas behind the production queue, on the simulation's clock.

Requests arrive, are admitted or refused, wait in the queue, are placed, run, and end; clients that were
refused may come back; replicas report and are lost. All decisions are the queue's (`policy.model_queue`) and
the replicas' (`fleetsim.step`).
"""

from collections import Counter
from collections.abc import Hashable, Iterable

from fleetsim.baselines import Queue
from fleetsim.clients import Clients
from fleetsim.degradation import FrontDoor
from fleetsim.engine import Engine, EventLog
from fleetsim.member import Member
from fleetsim.recorder import Recorder
from fleetsim.replica import Replica
from fleetsim.request import EXPIRED, FAILED, REFUSED, SERVED, Request
from fleetsim.rows import Row
from policy.flow import Flow
from policy.output_estimate import OutputEstimates
from policy.prefix import Chain
from policy.waiting import LevelChange, Refusal, Waiting

TICK_US = 250_000  # of the queue's own time, and of the replicas' heartbeats
ARRIVE, REFUSE, PLACE, FIRST, END, EXPIRE, LOSE, LEVEL = range(8)  # kinds of records in the event log


class Fleet:
    def __init__(
        self,
        engine: Engine,
        log: EventLog,
        queue: Queue,
        replicas: Iterable[tuple[Replica, int]],
        recorder: Recorder,
        clients: Clients,
        *,
        hop_us: int,
        warm_us: int = 0,
        quota_tokens_per_minute: int = 0,
        smaller: "Fleet | None" = None,
        model: str = "model",
    ) -> None:
        self.engine, self.log, self.queue = engine, log, queue
        self.recorder, self.clients = recorder, clients
        self.model = model
        self.members = {replica.key: Member(replica, zone) for replica, zone in replicas}
        self.levels: list[LevelChange] = []
        self.spares: list[Replica] = []  # the warm pool
        self._hop_us, self._warm_us = hop_us, warm_us
        self._estimates = OutputEstimates()
        self.smaller = smaller
        self.door = FrontDoor(
            clients, self._estimates, model, quota_tokens_per_minute, smaller.enter if smaller else None
        )
        if smaller:
            smaller.door = self.door  # what was reserved is settled where it ends
        self._requests: dict[Hashable, Request] = {}  # submitted and not ended
        self._lived = 0  # requests in the system at the last tick
        self._over: frozenset[Flow] = frozenset()
        self._numbers = {key: number for number, key in enumerate(self.members)}
        queue.replicas_set([member.view() for member in self.members.values()])

    @property
    def live(self) -> int:
        """Requests in the system."""
        return len(self._requests)

    @property
    def ready(self) -> list[Replica]:
        return [member.replica for member in self.members.values() if member.is_up]

    # -- requests ------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """A try of a client. Refused ones may come back."""
        now_us = self.engine.now_us
        request.tries += 1
        request.submitted_us = now_us
        request.deadline_us = now_us + request.arrival.deadline_ms * 1000
        self.log.add(now_us, ARRIVE, request.number, request.tries)
        if refusal := self.door.reserve(request, self.engine.now_ms):
            self._refused(request, refusal)
        else:
            elsewhere = self.door.degrade(request, self.queue.level)
            (elsewhere or self.enter)(request)

    def enter(self, request: Request) -> None:
        """It may wait here, or is refused."""
        if refusal := self._enqueue(request):
            self.door.settle(request, self.engine.now_ms)
            self._refused(request, refusal)
            return
        self.clients.admitted(request)
        self.dispatch()

    def _enqueue(self, request: Request) -> Refusal | None:
        now_ms, arrival = self.engine.now_ms, request.arrival
        chains = (Chain(arrival.prefix),) if arrival.prefix else ()
        waiting = Waiting(
            key=request.number,
            flow=request.flow,
            weight=arrival.weight,
            arrived_ms=now_ms,
            deadline_ms=request.deadline_us / 1000,
            prompt_tokens=arrival.prompt_tokens,
            cached_tokens=self.queue.prefixes.most(chains, now_ms),
            expected_tokens=self._estimates.expected(arrival.tenant, self.model, arrival.max_tokens),
            is_retry=request.tries > 1,
            chains=chains,
        )
        refusal = self.queue.submit(waiting, now_ms)
        if refusal is None:
            self._requests[request.number] = request
            request.entered_us = self.engine.now_us
        return refusal

    def _refused(self, request: Request, refusal: Refusal) -> None:
        now_us = self.engine.now_us
        self.log.add(now_us, REFUSE, request.number, refusal.retry_after_ms)
        if refusal.retry_after_ms and self.clients.returns(request):
            if request.tries == 1:
                self.clients.retries.first += 1
            self.engine.at(now_us + refusal.retry_after_ms * 1000, self.submit, request)
        else:
            self._decide(request, REFUSED)

    def _decide(self, request: Request, outcome: str) -> None:
        request.outcome, request.end_us = outcome, self.engine.now_us
        if self._requests.pop(request.number, None):
            self.door.settle(request, self.engine.now_ms)

    # -- placing -------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Places what can be placed."""
        while (taken := self.queue.take(self.engine.now_ms)) is not None:
            request = self._requests[taken.waiting.key]
            member = self.members[taken.replica]
            row = Row(
                number=request.number,
                flow=taken.waiting.flow,
                weight=taken.waiting.weight,
                prompt_tokens=request.arrival.prompt_tokens,
                output_tokens=request.output_tokens,
                prefix=request.arrival.prefix,
                emitted=request.row.emitted if request.row else 0,
                last_us=request.row.last_us if request.row else 0,
            )
            request.row, request.replica, request.placed_us = row, taken.replica, self.engine.now_us
            member.placed += 1
            member.unseen_tokens += row.need_tokens
            self.log.add(self.engine.now_us, PLACE, request.number, self._numbers[taken.replica])
            self.engine.at(self.engine.now_us + self._hop_us, self._arrived, member, row)

    def _arrived(self, member: Member, row: Row) -> None:
        if not member.is_up:
            return
        member.unseen_tokens -= row.need_tokens
        member.replica.place(row, self.engine.now_us)
        if not member.replica.is_busy:
            self._step(member)

    # -- steps ---------------------------------------------------------------------------------------------

    def _step(self, member: Member) -> None:
        duration_us = member.replica.step_begin(self.engine.now_us)
        self.engine.at(self.engine.now_us + duration_us, self._stepped, member)

    def _stepped(self, member: Member) -> None:
        if not member.is_up:
            return
        now_us, replica, recorder = self.engine.now_us, member.replica, self.recorder
        recorder.now_us = now_us
        pending = replica.memory.pending_tokens
        end = replica.step_end(now_us)
        for row in end.prefilled:
            self._first(row)
        for row in end.ended:
            self._ended(member, row)
        if replica.has_work:
            self._step(member)
        if end.prefilled or end.ended or pending != replica.memory.pending_tokens:
            events = replica.memory.cache.take_events()
            self.engine.at(now_us + self._hop_us, self._reported, member, end.prefilled, end.ended, events)

    def _first(self, row: Row) -> None:
        request = self._requests[row.number]
        if request.first_us:  # it was computed anew
            return
        request.first_us = self.engine.now_us
        self.log.add(request.first_us, FIRST, request.number, row.cached_tokens)
        self.recorder.prompt(row.prompt_tokens, row.cached_tokens)
        self.recorder.first_token(request)

    def _ended(self, member: Member, row: Row) -> None:
        request = self._requests[row.number]
        member.placed -= 1
        self.log.add(self.engine.now_us, END, request.number, row.output_tokens)
        self._estimates.observe(request.arrival.tenant, self.model, row.output_tokens)
        self._decide(request, SERVED)

    def _reported(
        self, member: Member, prefilled: list[Row], ended: list[Row], events: tuple[list[int], list[int]]
    ) -> None:
        """The queue hears of a step."""
        if not member.is_up:
            return
        now_ms = self.engine.now_ms
        for row in prefilled:
            self.queue.prefilled(row.number)
        for row in ended:
            self.queue.ended(row.number, now_ms)
        self.queue.prefixes.reported(member.replica.key, *events)
        self.queue.replica_update(member.view())
        self.dispatch()

    # -- time ----------------------------------------------------------------------------------------------

    def start(self, until_us: int) -> None:
        """Heartbeats until then."""
        if self.smaller and not self.engine.now_us:
            self.smaller.start(until_us)
        if self.engine.now_us < until_us:
            self.engine.at(self.engine.now_us + TICK_US, self._tick, until_us)

    def _tick(self, until_us: int) -> None:
        now_us, now_ms = self.engine.now_us, self.engine.now_ms
        self.recorder.now_us = now_us
        up = [member for member in self.members.values() if member.is_up]
        self._report_work(up)
        for change in self.queue.tick(now_ms):
            self.levels.append(change)
            self.log.add(now_us, LEVEL, change.before, change.after)
            if change.after > 0:
                self._promote()
        for waiting in self.queue.expired(now_ms):
            request = self._requests[waiting.key]
            self.log.add(now_us, EXPIRE, request.number)
            self._decide(request, EXPIRED)
        over = self.queue.over_share()
        if over != self._over:
            self._over = over
            for member in up:
                member.replica.shares.over_set(over)
        self.recorder.fold()
        self.recorder.replica_time(len(up), now_us - TICK_US, now_us)
        self.recorder.state(self.queue.depth("interactive"), len(up))
        self.recorder.live_us += (self._lived + self.live) * TICK_US // 2
        self._lived = self.live
        self.dispatch()
        self.start(until_us)

    def _report_work(self, up: list[Member]) -> None:
        for member in up:
            for flow, total_us in member.replica.shares.total_us.items():
                self.queue.worked(member.replica.key, flow, total_us)
        self.recorder.work(self.model, self.work_us)

    @property
    def work_us(self) -> Counter[Flow]:
        """Machine time that each flow was given since the beginning."""
        work: Counter[Flow] = Counter()
        for member in self.members.values():
            work.update(member.replica.shares.total_us)
        return work

    # -- replicas ------------------------------------------------------------------------------------------

    def lose_zone(self, zone: int) -> None:
        """Its replicas are gone. What ran there goes on elsewhere, its emitted tokens computed anew."""
        for member in self.members.values():
            if member.is_up and member.zone == zone:
                self._lose(member)
        self.dispatch()

    def _lose(self, member: Member) -> None:
        member.is_up = False
        now_us, now_ms = self.engine.now_us, self.engine.now_ms
        self.log.add(now_us, LOSE, self._numbers[member.replica.key])
        member.replica.lost()
        for waiting in self.queue.replica_gone(member.replica.key):
            request = self._requests.get(waiting.key)
            if request is None:  # it ended, and the report was lost with the replica
                continue
            if request.deadline_us < now_us and not request.first_us:
                self._decide(request, FAILED)
            else:
                waiting.prompt_tokens = request.row.need_tokens if request.row else waiting.prompt_tokens
                if request.first_us:  # its client has waited once: the rest has as long again
                    waiting.deadline_ms = now_ms + request.arrival.deadline_ms
                self.queue.requeue(waiting, now_ms)

    def _promote(self) -> None:
        """The warm pool, all of it: until there is an autoscaler, the first level of pressure asks for it."""
        for replica in self.spares:
            self.engine.at(self.engine.now_us + self._warm_us, self.add, replica, len(self.members))
        self.spares = []

    def add(self, replica: Replica, zone: int) -> None:
        """One more is ready."""
        self._numbers.setdefault(replica.key, len(self._numbers))
        member = self.members[replica.key] = Member(replica, zone)
        replica.shares.over_set(self._over)
        self.queue.replica_update(member.view())
        self.dispatch()
