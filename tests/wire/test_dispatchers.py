"""Which dispatcher is tried next, and whose word counts."""

import pytest

from gpuworker.wire.dispatchers import Dispatchers
from gpuworker.wire.messages import Refusal, Welcome


def welcome(term: int) -> Welcome:
    return Welcome(version=1, id="d", incarnation="d", term=term)


def standby(active: str) -> Refusal:
    return Refusal(code="standby", message="", active=active)


def test_one_address_is_tried_again_with_the_pauses_of_its_caller() -> None:
    one = Dispatchers("unix:/a")
    one.failed()
    assert (one.address, one.are_several, one.pause_s(7.0)) == ("unix:/a", False, 7.0)


def test_several_are_tried_in_turn_without_a_pause_between_them() -> None:
    several = Dispatchers("unix:/a, unix:/b ,unix:/c")
    seen = []
    for _ in range(6):
        several.failed()
        seen.append((several.address, several.pause_s(7.0)))
    assert [address for address, _ in seen] == ["unix:/b", "unix:/c", "unix:/a"] * 2
    assert [pause_s for _, pause_s in seen] == [0.0, 0.0, 0.1] * 2


def test_after_many_rounds_it_is_in_no_hurry_until_one_was_joined() -> None:
    several = Dispatchers("unix:/a,unix:/b")
    for _ in range(82):
        several.failed()
    assert several.pause_s(7.0) == 1.0
    assert several.welcomed(welcome(1)) == ""
    several.failed()
    several.failed()
    assert several.pause_s(7.0) == 0.1


def test_a_standby_says_who_is_active() -> None:
    several = Dispatchers("unix:/a,unix:/b,unix:/c")
    several.refused(standby("unix:/c"))
    several.failed()
    assert several.address == "unix:/c"
    several.failed()
    assert several.address == "unix:/a"


def test_who_names_an_address_that_is_not_ours_is_not_believed() -> None:
    several = Dispatchers("unix:/a,unix:/b")
    several.refused(standby("tcp://evil:1"))
    several.failed()
    assert several.address == "unix:/b"


def test_a_lower_term_than_was_seen_is_refused() -> None:
    several = Dispatchers("unix:/a,unix:/b")
    assert several.welcomed(welcome(5)) == ""
    assert several.welcomed(welcome(5)) == ""
    assert several.welcomed(welcome(7)) == ""
    assert "term is 5" in several.welcomed(welcome(5))
    assert several.term == 7


@pytest.mark.parametrize("bad", ["", " , "])
def test_no_address_is_an_error(bad: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        Dispatchers(bad)
