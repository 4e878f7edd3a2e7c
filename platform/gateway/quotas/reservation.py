"""What one request holds of its tenant's quotas, from its admission until it is known what it used."""

from collections.abc import Callable, Sequence

from gateway.http.exchange import HeaderList
from gateway.quotas.account_set import AccountSet
from gateway.quotas.accounts import Account
from gateway.quotas.demand import NOTHING, Demand, Used
from gateway.quotas.headers import headers_of
from gateway.quotas.store import now_ms


class Reservation:
    """`amounts[i]` is held of the i-th of `held`. Exactly one of `settle` and `cancel` counts: the first.

    `expected_tokens` of output are held. `on_end` hears whose accounts changed, and the output tokens of an
    answer that came to its own end.
    """

    __slots__ = ("_amounts", "_covered", "_demand", "_held", "_is_open", "_on_end", "_set", "_step")

    def __init__(
        self,
        demand: Demand,
        account_set: AccountSet,
        held: Sequence[Account],
        amounts: Sequence[int],
        *,
        expected_tokens: int,
        step: int,
        on_end: Callable[[Demand, Sequence[Account], int | None], None],
    ) -> None:
        self._demand = demand
        self._set = account_set
        self._held = held
        self._amounts = list(amounts)
        self._covered = expected_tokens
        self._step = step
        self._on_end = on_end
        self._is_open = True

    @property
    def headers(self) -> HeaderList:
        """As of now."""
        accounts = self._set.accounts
        return headers_of(
            [accounts[at] for at in self._set.tokens], [accounts[at] for at in self._set.requests]
        )

    def produced(self, output_tokens: int) -> None:
        """So many so far: an answer longer than expected takes more, in steps, or runs into debt."""
        if output_tokens <= self._covered or not self._is_open:
            return
        now, steps = now_ms(), -(-(output_tokens - self._covered) // self._step)
        more = steps * self._step
        self._covered += more
        for at, account in enumerate(self._held):
            if account.is_of_tokens:
                account.take_more(more, now)
                self._amounts[at] += more

    def settle(
        self,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        cost_micro_usd: int,
        is_whole: bool = True,
    ) -> None:
        """What was used; the rest goes back. `is_whole`: the answer came to its own end."""
        used = Used.of(self._demand.requests, prompt_tokens, cached_tokens, output_tokens, cost_micro_usd)
        self._end(used, output_tokens if is_whole else None)

    def cancel(self) -> None:
        """Nothing ran."""
        self._end(NOTHING, None)

    def _end(self, used: Used, output_tokens: int | None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        now = now_ms()
        for account, amount in zip(self._held, self._amounts, strict=True):
            account.give(amount, account.actual(used), now)
        self._on_end(self._demand, self._held, output_tokens)
