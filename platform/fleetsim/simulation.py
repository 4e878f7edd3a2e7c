"""Builds the fleet of a scenario and runs it to the end of its time, with or without its disturbances."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from fleetsim.arrival import Arrival
from fleetsim.baselines import PlainQueue, Queue
from fleetsim.clients import Clients
from fleetsim.engine import Engine, EventLog
from fleetsim.fleet import TICK_US, Fleet
from fleetsim.member import Member
from fleetsim.recorder import Recorder
from fleetsim.replica import Replica
from fleetsim.replica_model import ReplicaModel, replica_model
from fleetsim.request import Request
from fleetsim.scenario import Scenario, ScenarioError
from policy.flow import Flow
from policy.model_queue import ModelQueue
from policy.queue_settings import QueueSettings

PLOT_STEPS = 120

Progress = Callable[[float], None]  # part of the simulated time that is over


@dataclass(frozen=True, slots=True)
class Simulation:
    """What one run left behind."""

    scenario: Scenario
    fleet: Fleet
    recorder: Recorder
    clients: Clients
    log: EventLog

    @property
    def members(self) -> list[Member]:
        """Every replica there was."""
        smaller = self.fleet.smaller.members.values() if self.fleet.smaller else ()
        return [*self.fleet.members.values(), *smaller]


def simulate(scenario: Scenario, *, quiet: bool = False, progress: Progress | None = None) -> Simulation:
    """`quiet`: without noise and events, the same arrivals otherwise. Raises ScenarioError."""
    file = scenario.file
    engine, log = Engine(), EventLog()
    begin_us, end_us = scenario.measured_us
    duration_us = round(file.duration_s * 1e6)
    slice_us = TICK_US * max(
        1, -(-duration_us // (PLOT_STEPS * TICK_US))
    )  # whole ticks: tokens come in those
    recorder = Recorder(scenario.workload.noisy(), begin_us, end_us, duration_us, slice_us)
    clients = Clients(file.clients, file.seed)
    fleet = _fleet(scenario, engine, log, recorder, clients)
    arrivals = scenario.workload.arrivals(file.seed, noise=not quiet)
    source = _Source(engine, fleet, recorder, arrivals)
    source.next()
    fleet.start(duration_us)
    if not quiet:
        for event in file.event:
            engine.at(round(event.at_s * 1e6), fleet.lose_zone, event.zone)
    for step in range(PLOT_STEPS):
        engine.run(duration_us * (step + 1) // PLOT_STEPS)
        if progress:
            progress((step + 1) / PLOT_STEPS)
    return Simulation(scenario, fleet, recorder, clients, log)


class _Source:
    """Arrivals, one event at a time."""

    def __init__(self, engine: Engine, fleet: Fleet, recorder: Recorder, arrivals: Iterator[Arrival]) -> None:
        self._engine, self._fleet, self._recorder = engine, fleet, recorder
        self._arrivals = arrivals
        self._indexes = {False: 0, True: 0}

    def next(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._engine.at(arrival.at_us, self._arrive, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        is_noise = arrival.tenant in self._recorder.noisy
        self._indexes[is_noise] += 1
        request = Request(
            number=len(self._recorder.requests),
            index=self._indexes[is_noise],
            arrival=arrival,
            is_noise=is_noise,
            flow=Flow(arrival.tenant, arrival.klass),
            output_tokens=min(arrival.output_tokens, arrival.max_tokens),
            submitted_us=arrival.at_us,
            deadline_us=0,
        )
        self._recorder.requests.append(request)
        self._recorder.now_us = self._engine.now_us
        self._recorder.slice().arrived += 1
        self._fleet.submit(request)
        self.next()


def _fleet(scenario: Scenario, engine: Engine, log: EventLog, recorder: Recorder, clients: Clients) -> Fleet:
    part = scenario.file.fleet
    model = _model(scenario)
    pausing = scenario.file.queue.policy == "production"

    def replicas(letter: str, count: int, replica_model: ReplicaModel) -> list[Replica]:
        return [
            Replica(f"{letter}{number:04}", replica_model, recorder.gap, pausing=pausing)
            for number in range(count)
        ]

    hop_us = round(part.hop_ms * 1000)
    smaller = None
    if part.smaller:
        few = [(replica, 0) for replica in replicas("s", part.smaller, model.smaller())]
        smaller = Fleet(engine, log, _queue(scenario), few, recorder, clients, hop_us=hop_us, model="smaller")
    fleet = Fleet(
        engine,
        log,
        _queue(scenario),
        [
            (replica, number % part.zones)
            for number, replica in enumerate(replicas("r", part.replicas, model))
        ],
        recorder,
        clients,
        hop_us=hop_us,
        warm_us=round(part.warm_s * 1e6),
        quota_tokens_per_minute=scenario.file.quota_tokens_per_minute,
        smaller=smaller,
    )
    fleet.spares = replicas("w", part.warm, model)
    return fleet


def _model(scenario: Scenario) -> ReplicaModel:
    part = scenario.file.fleet
    return replica_model(part.model, scenario.folder / part.measured if part.measured else None)


def _queue(scenario: Scenario) -> Queue:
    part = scenario.file.queue
    if part.policy != "production":
        return PlainQueue(is_fair=part.policy == "vtc")
    try:
        settings = QueueSettings(**part.settings)
    except TypeError as error:
        raise ScenarioError(f"queue.settings: {error}") from error
    return ModelQueue(settings, 0.0, Random(scenario.file.seed))  # noqa: S311
