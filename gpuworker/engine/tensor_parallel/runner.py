"""Rank 0's runner: every plan, move and block transfer goes to the other ranks and is done here as well."""

import atexit
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.loader import BadWeights
from gpuworker.engine.model_runner import fastest_dtype
from gpuworker.engine.plan import Moves, Sampled, StepPlan
from gpuworker.engine.tensor_parallel.collectives import Collectives, RankLost
from gpuworker.engine.tensor_parallel.group import OnLost, RankGroup
from gpuworker.engine.tensor_parallel.messages import (
    Command,
    Head,
    Join,
    Load,
    Move,
    ReadBlocks,
    Run,
    WriteBlocks,
)
from gpuworker.engine.tensor_parallel.shard_model import LeadModel, runner_build
from gpuworker.engine.tensor_parallel.sharding import config_shard
from gpuworker.families.config import config_load

T = TypeVar("T")


class TensorParallelRunner:
    """Implements `plan.Runner` over a model runner of its own slice and the other ranks.

    Every method raises RankLost once a rank is lost. Only the thread that runs steps calls them, save
    `on_lost` and `close`.
    """

    def __init__(self, group: RankGroup, collectives: Collectives, model: LeadModel, load: Load) -> None:
        self._group = group
        self._collectives = collectives
        self._model = model
        self._local = runner_build(model, load)
        self._ranks = load.ranks
        self.max_context_tokens = load.max_context_tokens

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        ranks: int,
        blocks: int,
        max_rows: int,
        max_context_tokens: int,
        host_blocks: int = 0,
        dtype: str = "auto",
        threads: int,
    ) -> Self:
        """As `ModelRunner.load`, but a model that does not divide over `ranks` is refused too, before any
        process is started, and `threads` are shared out."""
        config = config_load(folder)
        config_shard(config, ranks)
        torch.set_num_threads(max(1, threads // ranks))
        load = Load(
            folder=str(folder),
            rank=0,
            ranks=ranks,
            device="cpu",
            dtype=str(fastest_dtype(config)).removeprefix("torch.") if dtype == "auto" else dtype,
            blocks=blocks,
            host_blocks=host_blocks,
            max_rows=max_rows,
            max_context_tokens=min(max_context_tokens, config.max_position),
            threads=torch.get_num_threads(),
        )
        group, collectives = RankGroup(ranks), Collectives(0, ranks, device=load.device)
        try:
            runner = cls._assemble(group, collectives, load)
        except BaseException:
            group.close()
            collectives.leave()
            raise
        atexit.register(runner.close)
        return runner

    @classmethod
    def _assemble(cls, group: RankGroup, collectives: Collectives, load: Load) -> Self:
        """All ranks load at the same time, then meet."""
        group.send_each([msgspec.structs.replace(load, rank=rank) for rank in range(1, load.ranks)])

        def ask(rows: int) -> None:
            group.send(Head(rows))

        with torch.inference_mode():
            runner = cls(group, collectives, LeadModel(load, collectives, ask), load)
        if problems := [answer.error for answer in group.receive() if answer.error]:
            raise BadWeights(problems[0])
        with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
            join = Join(f"{folder}/store")
            group.send(join)
            collectives.join(Path(join.store))
            group.receive()
        return runner

    @property
    def vocab_size(self) -> int:
        return self._local.vocab_size

    @property
    def dtype(self) -> torch.dtype:
        return self._local.dtype

    @property
    def rank_pids(self) -> list[int]:
        return self._group.pids

    def on_lost(self, callback: OnLost) -> None:
        """Called on another thread when a rank is lost, also while nothing is computed."""
        self._group.on_lost(callback)

    def move(self, moves: Moves) -> None:
        self._group.send(Move(moves))
        self._local.move(moves)

    def run(self, plan: StepPlan) -> list[Sampled]:
        self._group.send(Run(plan))
        try:
            with self._model.in_step(plan):
                return self._local.run(plan)
        except RankLost as error:
            raise self._group.verdict(str(error)) from error

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        """As one rank would give them: all heads. Raises ValueError for blocks that do not exist."""
        commands = [ReadBlocks(blocks)] * (self._ranks - 1)
        own, others = self._transfer(commands, lambda: self._local.read_blocks(blocks))
        return [self._join(parts) for parts in zip(own, *others, strict=True)]

    def write_blocks(self, blocks: list[int], contents: list[bytes]) -> None:
        """Raises ValueError for contents that `KVCache.write` refuses; some heads may then be written."""
        parts = [self._split(content) for content in contents]
        own, *others = [[part[rank] for part in parts] for rank in range(self._ranks)]
        commands = [WriteBlocks(blocks, other) for other in others]
        self._transfer(commands, lambda: self._local.write_blocks(blocks, own))

    def _transfer(self, commands: Sequence[Command], do_here: Callable[[], T]) -> tuple[T, list[list[bytes]]]:
        self._group.send_each(commands)
        try:
            own = do_here()
        finally:
            answers = self._group.receive()
        if problems := [answer.error for answer in answers if answer.error]:
            raise ValueError(problems[0])
        return own, [answer.contents for answer in answers]

    def _join(self, parts: Sequence[bytes]) -> bytes:
        return np.concatenate([self._positions(part) for part in parts], axis=1).tobytes()

    def _split(self, content: bytes) -> list[bytes]:
        heads = np.split(self._positions(content), self._ranks, axis=1)
        return [part.tobytes() for part in heads]

    def _positions(self, content: bytes) -> NDArray[np.uint8]:
        """[positions of all layers' keys, then values; bytes of all heads at one position]."""
        return np.frombuffer(content, np.uint8).reshape(2 * self._model.config.layers * BLOCK_SIZE, -1)

    def close(self) -> None:
        """Ends the other ranks. Done at the end of the process unless before."""
        self._group.close()  # first, because it ends a sum that may be under way
        self._collectives.leave()
        atexit.unregister(self.close)
