"""One limit on one gateway, without a store."""

from dataclasses import replace

import pytest

from gateway.metrics import Metrics
from gateway.quotas.buckets import BucketAccount
from gateway.quotas.quotas import Quotas
from policy.lease import Lease
from tests.gateway.quota_gateways import PATIENT, demand, end, grant, limit, settings

CAP = 1_000


@pytest.fixture
def account() -> BucketAccount:
    """Of a gateway alone, while the store is down."""
    account = BucketAccount(limit("tokens_per_minute", CAP), b"", Lease(CAP, 0), PATIENT)
    account.local_begin(1, 0)
    return account


def room(account: BucketAccount) -> int:
    return next(amount for amount in range(CAP, -CAP, -1) if account.local_has(amount, 0))


def test_an_answer_longer_than_expected_is_charged_to_the_local_share(account: BucketAccount) -> None:
    account.local_take(100, 0)
    account.take_more(384, 0)
    assert room(account) == CAP - 484
    account.give(484, 400, 0)
    assert room(account) == CAP - 400
    assert account.lease.returning == -400  # what the store is told


async def test_answers_that_were_cut_short_do_not_teach_how_long_answers_are() -> None:
    """Else each cut would make the next one shorter."""
    quotas = Quotas(settings("redis://127.0.0.1:1/0"), "one", Metrics(), None, PATIENT)
    of = grant()
    for _ in range(20):
        end(await quotas.reserve(demand(of, output=2_000)), output=400)
    assert quotas.expected_tokens(of.tenant_id, "m", 2_000) == 400
    for _ in range(20):
        shortened = replace(demand(of, output=400), is_shortened=True)
        end(await quotas.reserve(shortened), output=399)
    assert quotas.expected_tokens(of.tenant_id, "m", 2_000) == 400
