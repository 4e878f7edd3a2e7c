"""The demo model for fuzzing: one runner, used again by every trial."""

from tokenizers import Tokenizer

from bench.fuzz.engine_model import Model
from bench.fuzz.engine_requests import PIECES, Vocabulary
from config.environment import weights_dir
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.engine.plan import Runner
from modelsvc.importer import model_import_demo

BLOCKS, HOST_BLOCKS, ROWS, CONTEXT_TOKENS = 64, 16, 16, 400
END_TOKENS = ("<|im_end|>", "<|endoftext|>")


def demo_model() -> Model:
    weights = weights_dir()
    folder = weights / model_import_demo(weights, progress=False).digest
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    runner = ModelRunner.load(
        folder,
        blocks=BLOCKS,
        host_blocks=HOST_BLOCKS,
        max_rows=ROWS,
        max_context_tokens=CONTEXT_TOKENS,
        threads=2,
    )

    def runner_make(blocks: int, host_blocks: int, max_rows: int) -> Runner:
        assert blocks <= BLOCKS
        assert host_blocks <= HOST_BLOCKS
        assert max_rows <= ROWS
        return runner

    return Model(
        tokenizer_path=folder / "tokenizer.json",
        tokenizer=tokenizer,
        vocabulary=Vocabulary(
            runner.vocab_size,
            {piece: tokenizer.encode(piece, add_special_tokens=False).ids for piece in PIECES},
        ),
        eos_ids=frozenset(tokenizer.token_to_id(name) for name in END_TOKENS),
        runner_make=runner_make,
        max_context_tokens=CONTEXT_TOKENS,
        longest_output=30,
        requests=8,
    )
