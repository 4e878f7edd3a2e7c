"""Sums and exchanges between the ranks of one replica, on torch.distributed.

A sum is the same bits on all ranks, so what a rank decides from summed values it decides as all others do.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from gpuworker.engine.isolation import RunnerLost

BACKENDS = {"cpu": "gloo"}
LOOPBACK = "lo"  # or gloo listens where the host's name leads
TIMEOUT = timedelta(minutes=1)  # of a wait for ranks that live; a dead or frozen one is noticed by its pulse


class RankLost(RunnerLost):
    """A rank of the replica is gone or out of step."""


class Collectives:
    """One rank's end. A model may be built with it before it has joined the others."""

    def __init__(self, rank: int, ranks: int, *, device: str) -> None:
        self._rank = rank
        self._ranks = ranks
        self._backend = BACKENDS[device]
        self.sums_made = 0  # since the process began

    def join(self, store: Path) -> None:
        """Meets the other ranks, on this machine, over a file. Raises RankLost."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        with _lost_when_it_fails():
            dist.init_process_group(
                self._backend,
                store=FileStore(str(store), self._ranks),
                rank=self._rank,
                world_size=self._ranks,
                timeout=TIMEOUT,
            )

    def leave(self) -> None:
        """Before the process ends: its threads would abort it."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        self.sums_made += 1
        with _lost_when_it_fails():
            dist.all_reduce(part)
        return part

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's, in place."""
        with _lost_when_it_fails():
            dist.broadcast(tensor, 0)
        return tensor

    def gather(self, part: Tensor) -> Tensor:
        """Parts [rows, columns], equal in size → [rows, ranks · columns] on rank 0, else the own part."""
        parts = [torch.empty_like(part) for _ in range(self._ranks)] if self._rank == 0 else None
        with _lost_when_it_fails():
            dist.gather(part, parts)
        return torch.cat(parts, dim=-1) if parts else part


@contextmanager
def _lost_when_it_fails() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # all that torch.distributed raises; its class says no more
        raise RankLost(f"the connection to another rank failed: {error}") from error
