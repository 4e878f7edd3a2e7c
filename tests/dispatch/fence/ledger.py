"""What happened in a world, for its rules: who was disturbed, what was sent to whom, what went wrong."""

from collections import Counter, defaultdict

from gpuworker.wire.messages import RowKey


class Ledger:
    """Checks are kept, not raised: production code catches what its callbacks raise."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.disturbed: set[str] = set()  # workers, by incarnation: what they had may be lost
        self.sent: defaultdict[str, set[RowKey]] = defaultdict(set)  # rows, by the process they were sent to
        self.seen: Counter[str] = Counter()  # what occurred, to know that the rules were put to a test

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)

    def lost(self, worker: str, request_id: str) -> None:
        """A gateway took its worker for lost."""
        self.seen["moved"] += 1
        self.check(worker in self.disturbed, f"{request_id} was taken from {worker}, which did nothing wrong")
