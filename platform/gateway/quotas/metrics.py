"""What the quotas tell Prometheus. Labels are bounded: limits' names and scopes, states of the store."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from policy.store_state import State

_LEVELS = {State.OK: 0, State.OPEN: 1, State.TIGHT: 2}


class QuotaMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.store_state = Gauge(
            "sluice_gateway_quota_store_state",
            "0: the store answers; 1: local shares; 2: local shares, halved, and no batch",
            registry=registry,
        )
        self.gateways = Gauge(
            "sluice_gateway_quota_gateways", "Gateways that share the quotas", registry=registry
        )
        self.tenants = Gauge("sluice_gateway_quota_tenants", "Tenants with accounts here", registry=registry)
        self.refusals = Counter(
            "sluice_gateway_quota_refusals", "By limit and scope", ["name", "scope"], registry=registry
        )
        self.synchronous = Counter(
            "sluice_gateway_quota_synchronous", "Requests that waited for the store", registry=registry
        )
        self.local = Counter(
            "sluice_gateway_quota_local", "Requests admitted while the store was down", registry=registry
        )
        self.losses = Counter(
            "sluice_gateway_quota_store_losses", "Times the store had lost its data", registry=registry
        )
        self.unreadable = Counter(
            "sluice_gateway_quota_unreadable",
            "Requests whose tenant's counters cannot be read",
            registry=registry,
        )

    def state_set(self, state: State) -> None:
        self.store_state.set(_LEVELS[state])
