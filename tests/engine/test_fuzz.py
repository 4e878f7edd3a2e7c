"""A few seconds of `make fuzz SUITE=engine`, always the same seeds."""

import pytest

from bench.fuzz.engine import scripted_model
from bench.fuzz.engine_model import Model
from bench.fuzz.engine_trial import Trial

TRIALS = 150
PARTS = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_requests_never_break_the_engine(model: Model, part: int) -> None:
    for seed in range(part, TRIALS, PARTS):
        trial = Trial(model, seed)
        try:
            trial.run()
        except Exception as error:
            error.add_note("\n".join([f"seed {seed}", *trial.log]))
            raise
