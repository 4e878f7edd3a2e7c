"""Every bound of the quotas: waits, counts, lives. docs/quotas.md repeats these values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuotaBounds:
    answer_timeout_s: float = 0.02  # of the store, for anything a request waits for
    connect_timeout_s: float = 1.0
    connections: int = 16
    beat_s: float = 1.0  # between two heartbeats
    probe_s: float = 0.1  # likewise, while the store does not answer
    gateway_ttl_s: float = 5.0  # a gateway that does not beat is not counted
    exchange_s: float = 0.02  # what is given back waits this long for more of it
    expiry_s: float = 0.5  # between two looks for leases that are over
    slot_ttl_s: float = 30.0  # of a gateway that died
    slot_renew_s: float = 10.0
    idle_s: float = 60.0  # a tenant that is forgotten here
    ledger_timeout_s: float = 2.0
    learning_s: float = 3.0  # after data loss, until every gateway has reported what it spent
    recent_s: float = 60.0  # usage that is reported again after data loss
    top_up_tokens: int = 128  # at a time, of an answer longer than estimated
    spend_ahead_s: float = 75.0  # of the recent rate that is leased: an outage is longer than a request
