"""What Prometheus scrapes of the fleet, and what it is told when nobody knows."""

import msgspec
import redis
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from devservices.valkey import ValkeyServer
from gpuworker.wire.messages import FleetState
from modelsvc.controller.publisher import state_document
from modelsvc.fleet_contracts import FLEET_KEY
from tests.browser.conftest import now_ms
from tests.browser.fleet import MODEL, fleet, worker

Samples = dict[tuple[str, ...], float]


def publish(valkey: ValkeyServer, state: FleetState) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.set(FLEET_KEY, msgspec.json.encode(state_document(state)))


def scrape() -> Samples:
    """By name, and label values in the order of their names; nobody logs in for it."""
    response = Client().get("/console/metrics")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.content.decode())
        for sample in family.samples
    }


def test_preemptions_and_load_of_each_worker_can_be_scraped(clean_valkey: ValkeyServer) -> None:
    small = {"preemptions": 7, "swaps": 3, "paused": 2, "free_blocks": 40, "state": "suspect"}
    publish(clean_valkey, fleet([worker(0), worker(1, **small, model='a "small" one')], at_ms=now_ms()))
    samples = scrape()
    first, second = (MODEL, "worker-0"), ('a "small" one', "worker-1")
    assert samples["sluice_worker_preemptions_total", *first] == 2
    assert samples["sluice_worker_preemptions_total", *second] == 7
    assert samples["sluice_worker_swaps_total", *second] == 3
    assert samples["sluice_worker_paused", *second] == 2
    assert samples["sluice_worker_running", *first] == 12
    assert samples["sluice_worker_waiting", *first] == 1
    assert samples["sluice_worker_kv_blocks", *first] == 1_024
    assert samples["sluice_worker_kv_free_blocks", *second] == 40
    assert (samples["sluice_worker_ready", *first], samples["sluice_worker_ready", *second]) == (1, 0)
    assert samples["sluice_worker_step_seconds", *first] == 0.0814
    assert samples["sluice_queue_depth", "interactive", MODEL] == 3
    assert 0 <= samples["sluice_fleet_age_seconds",] < 60


def test_two_versions_of_a_model_have_one_depth(clean_valkey: ValkeyServer) -> None:
    state = fleet([], at_ms=now_ms())
    publish(clean_valkey, msgspec.structs.replace(state, queues=state.queues * 2))
    assert scrape()["sluice_queue_depth", "batch", MODEL] == 42


def test_a_scrape_fails_when_nobody_publishes(clean_valkey: ValkeyServer) -> None:
    response = Client().get("/console/metrics")
    assert response.status_code == 503
    assert b"controller" in response.content
