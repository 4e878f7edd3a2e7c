"""A tenant that always asks for twice what it may have, over several gateways; counts what it was given."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.errors import ApiError
from gateway.quotas.quotas import Quotas
from tenants.contracts import KeyGrant
from tests.gateway.quota_gateways import demand, end

PROMPT_TOKENS = 20
MAX_TOKENS = 30
MICRO_USD = 50  # at most 80 are reserved: 20 tokens at 1, 30 at 2


@dataclass
class Load:
    """`per_second`: requests of 50 tokens, on all gateways together. `tokens` and `micro_usd` were used."""

    gateways: Sequence[Quotas]
    of: KeyGrant
    per_second: float
    tokens: int = 0
    micro_usd: int = 0
    admitted: int = 0
    errors: Counter[tuple[int, str]] = field(default_factory=Counter)
    slowest_s: float = 0.0
    open: set["asyncio.Task[None]"] = field(default_factory=set)

    async def run(self, seconds: float) -> None:
        """Then what was admitted has ended, too."""
        chance, began, sent = random.Random(1), time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            for _ in range(int(passed * self.per_second) - sent):
                task = asyncio.create_task(
                    self._one(self.gateways[sent % len(self.gateways)], chance.random())
                )
                self.open.add(task)
                task.add_done_callback(self.open.discard)
                sent += 1
            await asyncio.sleep(0.005)
        while self.open:
            await asyncio.gather(*self.open)

    async def _one(self, quotas: Quotas, chance: float) -> None:
        began = time.monotonic()
        try:
            reservation = await quotas.reserve(demand(self.of, PROMPT_TOKENS, MAX_TOKENS))
        except ApiError as error:
            self.errors[error.status, error.code] += 1
            return
        finally:
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        self.admitted += 1
        output = int(chance * 2 * MAX_TOKENS)  # some run far over what was reserved for them
        self.tokens += PROMPT_TOKENS + output
        self.micro_usd += int(chance * MICRO_USD)
        await asyncio.sleep(chance * 0.05)
        end(reservation, PROMPT_TOKENS, output, int(chance * MICRO_USD))
