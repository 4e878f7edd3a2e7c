"""Replica models: the specification's, a roofline, and one that is fitted to measured steps."""

import json
from pathlib import Path
from random import Random

import pytest

from fleetsim.calibrate import cost_fit, main, steps_read
from fleetsim.replica_model import SPEC, Hardware, physical, replica_model, replica_model_read
from policy.step_cost import StepCost

COST = StepCost(13.0, 0.65, 0.35, 0.0019, 0.00065)


def steps_write(path: Path, cost: StepCost = COST, count: int = 600) -> None:
    rng = Random(1)
    lines = []
    for _ in range(count):
        rows, tokens = rng.randint(0, 16), rng.choice((0, 0, rng.randint(1, 256)))
        if not rows + tokens:
            continue
        step = {
            "decode_rows": rows,
            "prefill_tokens": tokens,
            "context_tokens": rows * rng.randint(50, 700),
            "prefill_pairs": tokens * rng.randint(1, 700),
        }
        step_ms = cost.predict_ms(*step.values()) * rng.gauss(1, 0.03)
        lines.append(json.dumps({**step, "step_ms": step_ms}) + "\n")
    path.write_text("".join(lines))


def test_costs_are_found_again_in_noisy_steps(tmp_path: Path) -> None:
    steps_write(tmp_path / "steps.jsonl")
    fitted = cost_fit(steps_read(tmp_path / "steps.jsonl"))
    for load in ((8, 0, 2400, 0), (4, 128, 1200, 40_000), (0, 256, 0, 32_000)):
        assert fitted.predict_ms(*load) == pytest.approx(COST.predict_ms(*load), rel=0.05)


def test_the_command_writes_a_model_that_a_scenario_can_name(tmp_path: Path) -> None:
    steps_write(tmp_path / "steps.jsonl")
    arguments = [str(tmp_path / "steps.jsonl"), str(tmp_path / "model.json"), "--target-ms", "80"]
    assert main(arguments) == 0
    model = replica_model("measured", tmp_path / "model.json")
    assert (model.name, model.target_ms) == ("measured", 80)
    assert model.row_limit(300) > 10
    assert 100 < model.output_tokens_per_s < 2000


@pytest.mark.parametrize("line", ["", "{}", "no json", '{"decode_rows": "x"}'])
def test_steps_that_are_none_are_an_error_with_their_line(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "steps.jsonl").write_text(line)
    assert main([str(tmp_path / "steps.jsonl"), str(tmp_path / "model.json")]) == 2
    assert ("line 1" if line else "no steps") in capsys.readouterr().err


def test_unknown_models_and_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="spec, physical, measured"):
        replica_model("other")
    with pytest.raises(ValueError, match="calibrate"):
        replica_model("measured")
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ValueError, match="no replica model"):
        replica_model_read(tmp_path / "model.json")


def test_the_roofline_is_near_the_specification() -> None:
    model = physical(Hardware())
    assert model.cost.base_ms == pytest.approx(SPEC.cost.base_ms, rel=0.15)
    assert model.cost.token_ms == pytest.approx(SPEC.cost.token_ms, rel=0.15)
    assert model.smaller().cost.base_ms == model.cost.base_ms / 4
