"""What a worker does for rows that decode: a first token at once, then a step for each group of rows."""

import time
from collections.abc import Callable

from bench.gateway.fleet import Fleet
from bench.gateway.frames import end_of, frame_of
from bench.gateway.loop import Loop
from gpuworker.wire.messages import Frame


class Decoding:
    """Rows that decode at the same rate, in groups of `rows_per_step` that step one after the other."""

    def __init__(
        self, loop: Loop, fleet: Fleet, *, rate: float, rows: int, rows_per_step: int, text: Callable[[], str]
    ) -> None:
        self._loop = loop
        self._fleet = fleet
        self._interval_s = 1 / rate
        self._rows_per_step = rows_per_step
        self._text = text
        self._groups: list[tuple[list[int], list[int]]] = []
        self._groups_expected = -(-rows // rows_per_step)
        self._began_at = time.monotonic()
        self.is_running = True
        self.rows_sent = 0

    def add(self, sid: int) -> None:
        """Its first token comes at once, in a frame of its own; the others with its group."""
        self._fleet.emit(frame_of([(sid, 0, 1, self._text())]))
        self.rows_sent += 1
        if not self._groups or len(self._groups[-1][0]) == self._rows_per_step:
            group: tuple[list[int], list[int]] = ([], [])
            phase = len(self._groups) / self._groups_expected
            self._groups.append(group)
            began_at = self._began_at + phase * self._interval_s
            steps = int((time.monotonic() - began_at) / self._interval_s) + 1
            self._step_at(group, began_at, steps)
        sids, starts = self._groups[-1]
        sids.append(sid)
        starts.append(1)

    def end(self) -> None:
        """Every row ends; nothing is sent after that."""
        self.is_running = False
        for sids, starts in self._groups:
            ends = [
                end_of(sid, "length", output_tokens=start) for sid, start in zip(sids, starts, strict=True)
            ]
            self._fleet.emit(frame_of([], ends=ends))

    def _step_at(self, group: tuple[list[int], list[int]], began_at: float, step: int) -> None:
        self._loop.call_at(began_at + step * self._interval_s, lambda: self._step(group, began_at, step))

    def _step(self, group: tuple[list[int], list[int]], began_at: float, step: int) -> None:
        if not self.is_running:
            return
        sids, starts = group
        rows = len(sids)
        self._fleet.emit(
            Frame(step=step, sids=sids, starts=starts, counts=[1] * rows, texts=[self._text()] * rows)
        )
        starts[:] = [start + 1 for start in starts]
        self.rows_sent += rows
        self._step_at(group, began_at, step + 1)
