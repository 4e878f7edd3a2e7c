"""Ids sort by when they were made, and are UUIDs of version 7."""

import pytest

from policy.ids import uuid7


def test_an_id_says_when_it_was_made() -> None:
    earlier, later = uuid7(1_700_000_000_000, (1 << 74) - 1), uuid7(1_700_000_000_001, 0)
    assert earlier.version == later.version == 7
    assert earlier.variant == later.variant == "specified in RFC 4122"
    assert earlier < later
    assert later.int >> 80 == 1_700_000_000_001


@pytest.mark.parametrize("unix_ms", [-1, 1 << 48])
def test_a_moment_that_does_not_fit_is_refused(unix_ms: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        uuid7(unix_ms, 0)
