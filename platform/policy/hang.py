"""When a step lasts so long that its engine hangs: far beyond what was predicted for it, so a long prompt is
no fault. Pure."""

LEAST_MS = 1_000.0
TIMES = 5  # what was predicted: so wrong no prediction is
UNKNOWN_MS = 30_000.0  # without a prediction


def hangs(ran_ms: float, predicted_ms: float) -> bool:
    """`predicted_ms` is 0 where nothing was predicted."""
    return ran_ms > (max(LEAST_MS, TIMES * predicted_ms) if predicted_ms > 0 else UNKNOWN_MS)
