"""A step is given five times what it was to take, and a second at least."""

import pytest

from policy.hang import LEAST_MS, UNKNOWN_MS, hangs


@pytest.mark.parametrize(
    ("ran_ms", "predicted_ms", "hung"),
    [
        (LEAST_MS, 1, False),
        (LEAST_MS + 1, 1, True),
        (2_000, 400, False),  # a long chunk
        (2_001, 400, True),
        (UNKNOWN_MS, 0, False),
        (UNKNOWN_MS + 1, 0, True),
    ],
)
def test_hangs(ran_ms: float, predicted_ms: float, hung: bool) -> None:
    assert hangs(ran_ms, predicted_ms) is hung
