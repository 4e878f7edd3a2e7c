"""The queue stays fast when everybody wants more than there is: its cost must not grow with flows times
replicas. `make bench SUITE=fairness` measures; this only tells a slip of a hundred times."""

from bench.fairness.decisions import RULE_PER_S, Stage


def test_many_backlogged_tenants_do_not_slow_decisions_down() -> None:
    # Given 10,000 requests of 500 tenants, all over their share, for 80 replicas that fill
    stage = Stage()
    stage.run(300)
    # Then it decides at a quarter of the promised rate at least, whatever else this machine does
    assert stage.run(700) > RULE_PER_S / 4
