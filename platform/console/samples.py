"""Sample data of the components page."""

from typing import Any

from console.fleet import FleetPage, fleet_page
from gpuworker.wire.messages import GatewayView, QueueView, WorkerView
from modelsvc.fleet_contracts import FleetSnapshot


def component_samples() -> dict[str, Any]:
    page = _page()
    return {
        "page": page,
        "colours": ["canvas", "surface", "raised", "line", "line-strong", "text", "text-soft", "accent"],
        "data_colours": range(1, 7),
        "tones": ["neutral", "ok", "info", "warn", "bad"],
        "spaces": [1, 2, 3, 4, 5, 6, 7, 8],
        "meters": [0.08, 0.44, 0.81, 0.97],
        "icons": ICONS,
    }


ICONS = [
    "gauge", "server", "queue", "gate", "rows", "bolt", "stack", "table", "chart", "grid", "sliders", "clock",
    "check", "info", "warning", "error", "sun", "moon", "screen", "menu", "close", "out", "user", "refresh",
    "link",
]  # fmt: skip


def _page() -> FleetPage:
    workers = [
        _worker("worker-0", "ready", free_blocks=412, rate=148.2),
        _worker("worker-1", "suspect", free_blocks=96, rate=0.0),
        _worker("worker-2", "draining", free_blocks=980, rate=12.4),
    ]
    return fleet_page(
        FleetSnapshot(
            seq=1,
            at_ms=0,
            workers=workers,
            queues=[
                QueueView(model="smollm2-135m", klass="interactive", depth=3, oldest_ms=240),
                QueueView(model="smollm2-135m", klass="batch", depth=0, oldest_ms=0),
            ],
            gateways=[GatewayView(id="gateway-0", incarnation="6f1c2d9e0b7a4c35", streams=21)],
            submitted=18_204,
            refused=12,
            tokens_per_s=160.6,
        ),
        now_ms=400,
    )


def _worker(name: str, state: str, *, free_blocks: int, rate: float) -> WorkerView:
    return WorkerView(
        id=name,
        incarnation=f"{name}-0123456789abcdef",
        model="smollm2-135m",
        digest="9f3c51e0d2ab7764c0ffee",
        address="",
        state=state,
        running=12,
        waiting=1,
        pending_prefill_tokens=384,
        blocks=1024,
        free_blocks=free_blocks,
        block_size=16,
        batch_rows=12,
        step=90_210,
        step_ms=81.4,
        tokens_per_s=rate,
        preemptions=2,
        age_ms=120,
    )
