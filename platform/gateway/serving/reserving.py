"""What a request takes of its tenant's quotas before it runs: all of it, or nothing."""

from gateway.quotas.quotas import Demand, Reservation
from gateway.runtime import Gateway
from gateway.serving.submission import Prepared


async def reserve(gateway: Gateway, prepared: Prepared) -> Reservation:
    """Raises ApiError; then nothing was taken. Of a reservation, `settle` or `cancel` must be called."""
    generation, slug = prepared.generation, prepared.route.slug
    return await gateway.quotas.reserve(
        Demand(
            grant=prepared.call.grant,
            model=slug,
            prompt_tokens=sum(map(len, prepared.prompts)),
            max_tokens=sum(prepared.max_tokens) * generation.n,
            klass=generation.klass,
            answers=len(prepared.prompts) * generation.n,
            price=gateway.snapshot().prices.get(slug),
            is_shortened=prepared.degradation.is_shortened,
        )
    )
