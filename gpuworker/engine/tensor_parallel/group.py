"""The ranks' processes as rank 0 sees them: started, spoken to, watched, and gone when one of them is lost.

Each rank has two socket pairs with rank 0. Commands and answers use one. On the other the rank sends a pulse
from a thread of its own: the end of that stream says that it died, its silence that it is frozen. Then all
ranks are killed, which also ends a sum that rank 0 waits for.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from gpuworker.engine.tensor_parallel.collectives import RankLost
from gpuworker.engine.tensor_parallel.messages import Answer, Command, answer_receive, encode

PULSE_S = 0.1
SILENT_PULSES = 10  # then it is frozen; of the fleet's 1.5 s half a second is left to end the replica
LOAD_S = 1800.0  # of the slowest disk; a rank without a pulse after it never loads
LAST_WORDS_BYTES = 4096
LEAVE_S = 2.0  # from the end of commands until a rank is killed
VERDICT_S = 2.0  # from a broken connection until the watcher knows whose end broke it

OnLost = Callable[[RankLost], None]
logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Rank:
    rank: int
    process: subprocess.Popen[bytes]
    control: Connection
    pulse: socket.socket
    last_words: str = ""
    silent_pulses: int = 0
    is_loaded: bool = False  # then it has a pulse

    def __str__(self) -> str:
        return f"tensor-parallel rank {self.rank} (pid {self.process.pid})"


class RankGroup:
    """All ranks but rank 0. Created by a thread that lives as long as the process: when it ends, the kernel
    kills the ranks."""

    def __init__(self, ranks: int) -> None:
        self._ranks = [_rank_start(rank) for rank in range(1, ranks)]
        self._lock = threading.Lock()  # guards the two below
        self._lost: RankLost | None = None
        self._on_lost: OnLost | None = None
        self._decided = threading.Event()
        self._stop, self._stopped = Pipe(duplex=False)
        self._watcher = threading.Thread(target=self._watch, name="rank-watcher", daemon=True)
        self._watcher.start()

    @property
    def pids(self) -> list[int]:
        return [rank.process.pid for rank in self._ranks]

    def on_lost(self, callback: OnLost) -> None:
        """Called once, on another thread or at once, when a rank is lost."""
        with self._lock:
            self._on_lost, lost = callback, self._lost
        if lost is not None:
            callback(lost)

    def send(self, command: Command) -> None:
        """To every rank. Raises RankLost."""
        self._send([encode(command)] * len(self._ranks))

    def send_each(self, commands: Sequence[Command]) -> None:
        """In the order of ranks, from 1 on. Raises RankLost."""
        self._send([encode(command) for command in commands])

    def _send(self, packed: Sequence[bytes]) -> None:
        self.check()
        for rank, message in zip(self._ranks, packed, strict=True):
            try:
                rank.control.send_bytes(message)
            except OSError as error:
                raise self.verdict(f"{rank} takes no commands: {error}") from error

    def receive(self) -> list[Answer]:
        """One of each rank, in order. Raises RankLost."""
        answers = []
        for rank in self._ranks:
            try:
                answers.append(answer_receive(rank.control))
            except (EOFError, OSError) as error:
                raise self.verdict(f"{rank} gives no answer: {error!r}") from error
        return answers

    def check(self) -> None:
        """Raises RankLost when a rank is lost."""
        if self._lost is not None:
            raise self._lost

    def verdict(self, symptom: str) -> RankLost:
        """What the watcher says about a connection that broke; the symptom when it sees all ranks alive."""
        self._decided.wait(VERDICT_S)
        return self._lost or RankLost(symptom)

    def close(self) -> None:
        """The ranks end: by themselves when they find their commands at an end, else killed."""
        self._stopped.close()
        self._watcher.join()
        for rank in self._ranks:
            rank.control.close()
        deadline = time.monotonic() + LEAVE_S
        for rank in self._ranks:
            try:
                rank.process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                logger.warning("%s does not end, killing it", rank)
        self._kill()
        self._stop.close()
        for rank in self._ranks:
            rank.pulse.close()

    # -- the watcher's thread -----------------------------------------------------------------------------

    def _watch(self) -> None:
        by_pulse = {rank.pulse: rank for rank in self._ranks}
        tick = time.monotonic() + PULSE_S
        while True:
            ready = wait([*by_pulse, self._stop], max(tick - time.monotonic(), 0))
            if self._stop in ready:
                return
            ended = [rank for pulse, rank in by_pulse.items() if pulse in ready and not _hear(rank)]
            if time.monotonic() >= tick:
                # Counted in own rounds: a pause of the whole machine is one round, not a silence.
                tick = time.monotonic() + PULSE_S
                for rank in self._ranks:
                    rank.silent_pulses += 1
                ended += filter(_is_silent, self._ranks)
            if ended:
                self._lose(ended[0])
                return

    def _lose(self, rank: _Rank) -> None:
        cause = _cause_of_silence(rank) if _is_silent(rank) else _cause_of_death(rank)
        self._kill()
        lost = RankLost(f"{rank} {cause}")
        logger.error("%s", lost)
        with self._lock:
            self._lost, callback = lost, self._on_lost
        self._decided.set()
        if callback is not None:
            callback(lost)

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            rank.process.wait()


def _rank_start(rank: int) -> _Rank:
    control, theirs = Pipe()
    pulse, their_pulse = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fds = (theirs.fileno(), their_pulse.fileno())
    command = [sys.executable, "-m", "gpuworker.engine.tensor_parallel.rank", str(rank), *map(str, fds)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, pass_fds=fds)  # noqa: S603
    finally:
        theirs.close()
        their_pulse.close()
    return _Rank(rank, process, control, pulse)


def _hear(rank: _Rank) -> bool:
    """Takes what the rank sent. False at the end of the stream."""
    try:
        packet = rank.pulse.recv(LAST_WORDS_BYTES)
    except ConnectionError:
        return False
    if not packet:
        return False
    rank.silent_pulses, rank.is_loaded = 0, True
    rank.last_words = packet[1:].decode(errors="replace")
    return True


def _is_silent(rank: _Rank) -> bool:
    return rank.silent_pulses >= (SILENT_PULSES if rank.is_loaded else LOAD_S / PULSE_S)


def _cause_of_silence(rank: _Rank) -> str:
    if rank.is_loaded:
        return f"gave no sign of life for {SILENT_PULSES * PULSE_S:g} s"
    return f"has not loaded after {LOAD_S:g} s"


def _cause_of_death(rank: _Rank) -> str:
    """Of a rank whose pulse ended: its status comes a moment later."""
    if rank.last_words:
        return f"failed: {rank.last_words}"
    try:
        status = rank.process.wait(PULSE_S)
    except subprocess.TimeoutExpired:
        return "closed its pulse"
    return f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
