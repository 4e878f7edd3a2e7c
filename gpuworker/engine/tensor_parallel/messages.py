"""What rank 0 sends to another rank, and what comes back: msgpack messages over a socket pair."""

from multiprocessing.connection import Connection

import msgspec

from gpuworker.engine.plan import Moves, StepPlan


class Command(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of what rank 0 sends."""


class Load(Command, frozen=True):
    """The first command. The answer comes when the slice is loaded."""

    folder: str
    rank: int
    ranks: int
    device: str
    dtype: str  # resolved: the same on all ranks
    blocks: int
    host_blocks: int
    max_rows: int
    max_context_tokens: int
    threads: int


class Join(Command, frozen=True):
    """Meet the other ranks over this file. The answer comes when all have met."""

    store: str


class Run(Command, frozen=True):
    """No answer: the step's sums need every rank."""

    plan: StepPlan


class Head(Command, frozen=True):
    """Logits of hidden states that are broadcast next. No answer: the parts are gathered."""

    rows: int


class Move(Command, frozen=True):
    """No answer: a failure ends the rank."""

    moves: Moves


class ReadBlocks(Command, frozen=True):
    blocks: list[int]


class WriteBlocks(Command, frozen=True):
    """Contents of this rank's heads."""

    blocks: list[int]
    contents: list[bytes]


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    error: str = ""
    contents: list[bytes] = []  # of ReadBlocks, this rank's heads


_commands = msgspec.msgpack.Decoder(Load | Join | Run | Head | Move | ReadBlocks | WriteBlocks)
_answers = msgspec.msgpack.Decoder(Answer)
encode = msgspec.msgpack.encode


def command_receive(connection: Connection) -> Command:
    """Raises EOFError when rank 0 is gone."""
    command: Command = _commands.decode(connection.recv_bytes())
    return command


def answer_receive(connection: Connection) -> Answer:
    """Raises EOFError or OSError when the rank is gone."""
    return _answers.decode(connection.recv_bytes())
