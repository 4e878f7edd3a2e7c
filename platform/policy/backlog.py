"""What waits for a model version, by its key: who left, who is too late, who became urgent, who fits nowhere.

Order is the fair queues' affair, and where there is room the placer's.
"""

from collections.abc import Callable, Hashable

from policy.deadlines import Deadlines
from policy.flow import BATCH_URGENT, Flow
from policy.placer import Placer
from policy.queue_settings import QueueSettings
from policy.waiting import Waiting
from policy.work import WorkEstimate


class Backlog:
    """`ran_dry` is called when no interactive request waits any more."""

    def __init__(self, settings: QueueSettings, placer: Placer, ran_dry: Callable[[], None]) -> None:
        self._urgent_weight = settings.urgent_weight
        self._placer, self._ran_dry = placer, ran_dry
        self.waiting: dict[Hashable, Waiting] = {}
        self.deadlines = Deadlines(settings.prefill_inflation)
        self.late: list[Waiting] = []  # they wait no longer, and nobody was told

    def enter(self, waiting: Waiting, estimate: WorkEstimate) -> None:
        """It waits; to be put into its queue then."""
        self.waiting[waiting.key] = waiting
        self.deadlines.enter(waiting, estimate)
        self._placer.changed()

    def leave(self, waiting: Waiting) -> None:
        """It waits no more, and is not in its queue."""
        del self.waiting[waiting.key]
        self.deadlines.leave(waiting)
        if not self._placer.interactive.depth:
            self._ran_dry()

    def remove(self, key: Hashable) -> Waiting | None:
        """Out of its queue as well. None: it does not wait."""
        waiting = self.waiting.get(key)
        if waiting is not None:
            self._placer.queue(waiting.flow).remove(waiting)
            self._placer.gone(key)
            self.leave(waiting)
        return waiting

    def drop_late(self, now_ms: float) -> None:
        """Who cannot start in time any more is kept for `take_late`."""
        for waiting in self.deadlines.late(now_ms):
            self.late.append(waiting)
            self.remove(waiting.key)

    def take_late(self) -> list[Waiting]:
        late, self.late = self.late, []
        return late

    def remove_longer(self, most_tokens: int) -> list[Waiting]:
        """Than that, with a token of output."""
        found = [waiting for waiting in self.waiting.values() if waiting.prompt_tokens + 1 > most_tokens]
        for waiting in found:
            self.remove(waiting.key)
        return found

    def hurry(self, now_ms: float) -> None:
        """Batch that would be late by itself is served among interactive requests."""
        for waiting in self.deadlines.urgent(now_ms):
            self._placer.batch.remove(waiting)
            self._placer.gone(waiting.key)
            waiting.flow = Flow(waiting.flow.tenant, BATCH_URGENT)
            waiting.weight *= self._urgent_weight
            self._placer.interactive.push(waiting)
