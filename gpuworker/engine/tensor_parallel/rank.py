"""`python -m gpuworker.engine.tensor_parallel.rank RANK CONTROL_FD PULSE_FD`: a rank beside rank 0.

Does what rank 0 says until that ends, and never outlives it. Signals meant for the whole replica are left to
rank 0, which may have rows to finish.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from gpuworker.engine.loader import BadWeights
from gpuworker.engine.model_runner import ModelRunner, NonFiniteLogits
from gpuworker.engine.tensor_parallel.collectives import Collectives, RankLost
from gpuworker.engine.tensor_parallel.group import LAST_WORDS_BYTES, PULSE_S
from gpuworker.engine.tensor_parallel.messages import (
    Answer,
    Head,
    Join,
    Load,
    Move,
    ReadBlocks,
    Run,
    WriteBlocks,
    command_receive,
    encode,
)
from gpuworker.engine.tensor_parallel.shard_model import ShardModel, runner_build
from gpuworker.families.fields import UnsupportedModel

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PULSE = b"."
LAST_WORDS = "!"

logger = logging.getLogger("gpuworker.engine.tensor_parallel.rank")


class Follower:
    """Commands of rank 0, one after the other. Raises EOFError when rank 0 is gone."""

    def __init__(self, control: Connection) -> None:
        self._control = control

    def load(self) -> None:
        """Rank 0 learns whether the rank is ready; if not, it has no other command."""
        load = command_receive(self._control)
        assert isinstance(load, Load)
        torch.set_num_threads(load.threads)
        self._collectives = Collectives(load.rank, load.ranks, device=load.device)
        try:
            self._model = ShardModel(load, self._collectives)
        except (UnsupportedModel, BadWeights) as error:
            self._answer(Answer(error=str(error)))
            return
        self._runner: ModelRunner = runner_build(self._model, load)
        self._answer(Answer())

    def follow(self) -> None:
        while True:
            match command_receive(self._control):
                case Join(store=store):
                    self._collectives.join(Path(store))
                    self._answer(Answer())
                case Run() as run:
                    self._run(run)
                case Head(rows=rows):
                    self._model.logits_help(rows)
                case Move(moves=moves):
                    self._runner.move(moves)
                case ReadBlocks() | WriteBlocks() as transfer:
                    self._answer(self._transfer(transfer))

    def await_end(self) -> None:
        """Of rank 0, if it does not kill this process before."""
        with suppress(EOFError, ConnectionError):
            while True:
                self._control.recv_bytes()

    def leave(self) -> None:
        self._collectives.leave()

    def _run(self, run: Run) -> None:
        try:
            with self._model.in_step(run.plan):
                self._runner.compute(run.plan)
        except RankLost:
            raise
        except NonFiniteLogits:
            pass  # known to all ranks
        except Exception as error:  # whatever it was, all ranks fail this step
            logger.warning("a step failed on this rank: %r", error)

    def _transfer(self, transfer: ReadBlocks | WriteBlocks) -> Answer:
        try:
            if isinstance(transfer, ReadBlocks):
                return Answer(contents=self._runner.read_blocks(transfer.blocks))
            self._runner.write_blocks(transfer.blocks, transfer.contents)
        except ValueError as error:
            return Answer(error=str(error))
        return Answer()

    def _answer(self, answer: Answer) -> None:
        self._control.send_bytes(encode(answer))


def _die_with_rank_0() -> None:
    """When it is killed while this process computes; otherwise the end of the commands says it as well."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _pulse_start(pulse: socket.socket) -> None:
    def beat() -> None:
        while True:
            try:
                pulse.send(PULSE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass  # rank 0 sleeps
            except OSError:
                return  # it is gone
            time.sleep(PULSE_S)

    threading.Thread(target=beat, name="pulse", daemon=True).start()


def main() -> int:
    rank, control_fd, pulse_fd = map(int, sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _die_with_rank_0()
    logging.basicConfig(format=f"%(asctime)s %(levelname)s rank-{rank} %(name)s: %(message)s")
    control, pulse = Connection(control_fd), socket.socket(fileno=pulse_fd)
    follower = Follower(control)
    try:
        with torch.inference_mode():
            follower.load()
            _pulse_start(pulse)
            follower.follow()
    except (EOFError, ConnectionError):
        follower.leave()  # rank 0 has ended
        return 0
    except RankLost as error:
        logger.info("%s", error)
        follower.await_end()  # rank 0 must not see this one end before the one that was lost
    except Exception as error:  # whatever it was: this rank is out of step with the others
        logger.exception("cannot go on")
        pulse.send(f"{LAST_WORDS}{type(error).__name__}: {error}".encode()[:LAST_WORDS_BYTES])
    return 1


if __name__ == "__main__":
    os._exit(main())  # at once: torch takes a second to take itself down, and there is nothing to save
