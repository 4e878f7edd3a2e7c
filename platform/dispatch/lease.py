"""Which of several dispatchers may act: what one of them makes of the lease's store. Pure: no clock, no I/O.

The lease is valid for `valid_ms` by the store's clock, and by its holder's from the moment it asked. Its term
grows with each holder: peers refuse a dispatcher whose term is lower than one they have seen. So a mistake
here (a clock that jumps, a store that forgot) costs a reconnect, and never lets two dispatchers place work.

A holder that cannot reach the store serves on, and a standby that cannot reach it never takes over. One that
slept past its lease does nothing before it has asked again. A standby looks before it takes, and takes only
what it saw: a question may lie in front of a store that stands still, and be heard when nobody waits for it.
"""

from dataclasses import dataclass
from typing import Final

LOOKS: Final = -1


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    valid_ms: int = 1_500
    renew_ms: int = 500
    look_ms: int = 250  # of a standby
    hold_off_ms: int = 1_000  # of a standby, after the store was away: the holder asks first


@dataclass(frozen=True, slots=True)
class Claim:
    takes_after: int  # take it if nobody holds it and this was the last term; LOOKS: look, or renew
    seen_term: int


@dataclass(frozen=True, slots=True)
class Grant:
    """The store's answer: who holds the lease now. Nobody does where the address is empty."""

    is_ours: bool
    term: int  # the last one
    address: str
    left_ms: int


class Lease:
    """`asks` before each question to the store, then `granted` or `failed`, one question at a time."""

    def __init__(self, now_ms: float, times: LeaseTimes | None = None) -> None:
        self._times = times or LeaseTimes()
        self.is_active = False
        self.term = 0  # under which it is, or last was, active
        self.seen_term = 0  # the highest of anybody
        self.active_address = ""  # of another, if known
        self.next_ms = now_ms  # when to ask
        self._asked_ms = now_ms
        self._sure_ms = now_ms  # active: last moment at which the lease was held or the store away
        self._is_away = False
        self._takes_from_ms = now_ms
        self._free_after = LOOKS  # the last term, when nobody was seen to hold it
        self._resumes = False  # slept past its lease; nobody is known to have followed

    def asks(self, now_ms: float) -> Claim:
        self._asked_ms = now_ms
        self.next_ms = now_ms + self._times.renew_ms
        if self.is_active:
            return Claim(self.term, self.seen_term)
        may_take = not self._is_away and now_ms >= self._takes_from_ms
        return Claim(self._free_after if may_take else LOOKS, self.seen_term)

    def granted(self, grant: Grant, now_ms: float) -> None:
        if self._is_away:
            self._is_away = False
            self._takes_from_ms = now_ms + self._times.hold_off_ms
        self._free_after = LOOKS if grant.address else grant.term
        self.seen_term = max(self.seen_term, grant.term)
        if not grant.is_ours:
            self.is_active = self._resumes = False
            self.active_address = grant.address
            self.next_ms = now_ms + min(self._times.look_ms, max(grant.left_ms, 0) + 1)
        elif now_ms - self._asked_ms >= self._times.valid_ms or grant.term < self.seen_term:
            self.is_active = False  # the answer is too old, or another was seen meanwhile
            self.next_ms = now_ms
        else:
            self.is_active, self._resumes, self.term = True, False, grant.term
            self.active_address = ""
            self._sure_ms = self._asked_ms
            self.next_ms = max(now_ms, self._asked_ms + self._times.renew_ms)

    def failed(self, now_ms: float) -> None:
        """The store could not be asked."""
        self._is_away, self._free_after = True, LOOKS
        if self.may_act(now_ms) or (self._resumes and self.seen_term <= self.term):
            self.is_active, self._resumes, self._sure_ms = True, False, now_ms
        self.next_ms = now_ms + self._times.look_ms

    def heard(self, term: int, now_ms: float) -> None:
        """A peer has seen this term."""
        if term > self.seen_term:
            self.seen_term = term
        if term > self.term and (self.is_active or self._resumes):
            self.is_active = self._resumes = False
            self.next_ms = now_ms

    def may_act(self, now_ms: float) -> bool:
        """Whether it is active at this moment; who slept past the lease is not."""
        if self.is_active and now_ms - self._sure_ms >= self._times.valid_ms:
            self.is_active, self._resumes = False, True
            self.next_ms = now_ms
        return self.is_active
