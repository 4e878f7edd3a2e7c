"""Amounts of quotas as people write and read them: money in dollars, everything else as counted."""

from decimal import Decimal

from django.core.exceptions import ValidationError

from tenants.contracts import SPEND_PER_DAY, SPEND_PER_MONTH
from tenants.models import MAX_QUOTA, Quota

_MONEY = (SPEND_PER_DAY, SPEND_PER_MONTH)
_MICRO_USD = 1_000_000
UNITS = {
    "tokens_per_minute": "tokens a minute",
    "requests_per_minute": "requests a minute",
    "concurrent_requests": "requests at a time",
    SPEND_PER_DAY: "US dollars a day of UTC",
    SPEND_PER_MONTH: "US dollars a month of UTC",
}


def amount_stored(name: str, amount: Decimal) -> int:
    """Micro-dollars of a spend, else the count itself. Raises ValidationError."""
    stored = amount * _MICRO_USD if name in _MONEY else amount
    if stored != int(stored):
        raise ValidationError(f"A number of {UNITS[name]} is whole.")
    if not 1 <= stored <= MAX_QUOTA:
        raise ValidationError(f"More than {UNITS[name]} can be counted.")
    return int(stored)


def amount_of(quota: Quota) -> Decimal:
    """What `amount_stored` made the quota of."""
    return Decimal(quota.limit) / _MICRO_USD if quota.name in _MONEY else Decimal(quota.limit)


def amount_shown(quota: Quota) -> str:
    """`$12.50`, or `150,000`; of a fraction of a cent all that there is."""
    amount = amount_of(quota)
    if quota.name not in _MONEY:
        return f"{amount:,}"
    cents = f"{amount:,.2f}"
    return f"${cents if amount == amount.quantize(Decimal('0.01')) else f'{amount:,f}'}"
