"""What becomes of a row whose upstream failed: another replica gets it, or it ends. It decides, no more."""

from collections import OrderedDict
from dataclasses import dataclass

from gpuworker.backends.external.failures import Failure
from gpuworker.wire.messages import RowKey

MAX_REMEMBERED = 4_096  # rows that failed here once


@dataclass(frozen=True, slots=True)
class Refused:
    """`capacity`: any replica may have it, this one too."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Ended:
    reason: str
    message: str


class Fates:
    def __init__(self) -> None:
        self._failed_before: OrderedDict[RowKey, None] = OrderedDict()

    def judge(self, row: RowKey, failure: Failure, *, has_begun: bool) -> Refused | Ended:
        """`has_begun`: its gateway was given tokens of it."""
        if has_begun:  # as with a replica that is lost: its gateway knows whether it may go on
            return Ended("moved", failure.told)
        if failure.kind == "refused":
            return Refused("unservable", f"{failure.told}: {failure.message}")
        if failure.kind == "overloaded":
            return Refused("capacity", failure.told)
        if row not in self._failed_before:
            self._remember(row)
            return Refused("capacity", failure.told)
        return Ended("deadline" if failure.kind == "silent" else "error", failure.told)

    def forget(self, row: RowKey) -> None:
        self._failed_before.pop(row, None)

    def _remember(self, row: RowKey) -> None:
        self._failed_before[row] = None
        if len(self._failed_before) > MAX_REMEMBERED:
            self._failed_before.popitem(last=False)
