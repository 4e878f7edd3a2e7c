"""What a client does after a 429: one that obeys comes back when it was told to, the others give up."""

from dataclasses import dataclass
from random import Random

from fleetsim.request import Request


@dataclass(frozen=True, slots=True)
class ClientRules:
    obeying: float = 1.0  # part of requests whose client comes back
    tries: int = 3  # in all
    accepts_smaller_model: float = 0.0  # part of tenants
    accepts_batch: float = 0.0


@dataclass(slots=True)
class RetryCounts:
    first: int = 0  # clients that came back once
    first_admitted: int = 0  # of these, admitted then
    pending: int = 0  # told to come back, and not back yet


class Clients:
    def __init__(self, rules: ClientRules, seed: int) -> None:
        self._rules, self._seed = rules, seed
        self.retries = RetryCounts()

    def admitted(self, request: Request) -> None:
        if request.tries == 2:
            self.retries.first_admitted += 1

    def returns(self, request: Request) -> bool:
        """Whether it comes back after this refusal. The same for the same request and seed."""
        if request.tries >= self._rules.tries:
            return False
        return self._chance(f"obeys/{request.is_noise}/{request.index}") < self._rules.obeying

    def accepts_smaller_model(self, tenant: str) -> bool:
        return self._chance(f"smaller/{tenant}") < self._rules.accepts_smaller_model

    def accepts_batch(self, tenant: str) -> bool:
        return self._chance(f"batch/{tenant}") < self._rules.accepts_batch

    def _chance(self, subject: str) -> float:
        return Random(f"{self._seed}/{subject}").random()  # noqa: S311
