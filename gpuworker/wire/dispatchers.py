"""Which of several dispatchers a peer speaks to: whose address is next, and whose word still counts.

Pure: no sockets, no clocks. One address is simply tried again and again, whatever it belongs to.
"""

from gpuworker.wire.messages import Refusal, Welcome

SILENCE_S = 1.5  # of a dispatcher that has a standby: as long as its lease is valid
ANSWER_S = 0.7  # to connect, and to be welcomed
_QUICK_ROUNDS = 40  # while a standby is about to take over
_QUICK_S, _SLOW_S = 0.1, 1.0


class Dispatchers:
    """`address` is the one to try; `term` the highest that any of them said to hold."""

    def __init__(self, addresses: str) -> None:
        """`addresses`: separated by commas. Raises ValueError when there is none."""
        self.addresses = tuple(part.strip() for part in addresses.split(",") if part.strip())
        if not self.addresses:
            raise ValueError("no address to connect to")
        self.term = 0
        self._next = 0
        self._tried = 0  # since one was joined
        self._is_hinted = False

    @property
    def address(self) -> str:
        return self.addresses[self._next]

    @property
    def are_several(self) -> bool:
        return len(self.addresses) > 1

    def welcomed(self, welcome: Welcome) -> str:
        """Why this one is refused: it was replaced and does not know. Empty when it is not."""
        if welcome.term < self.term:
            return f"its term is {welcome.term}, another dispatcher's is {self.term}"
        self.term, self._tried = welcome.term, 0
        return ""

    def refused(self, refusal: Refusal) -> None:
        """A standby may know who is active. Nobody is believed who names an address that is not ours."""
        if refusal.code == "standby" and refusal.active in self.addresses:
            self._is_hinted = refusal.active != self.address
            self._next = self.addresses.index(refusal.active)

    def failed(self) -> None:
        """The connection to `address` failed or ended: another is next."""
        self._tried += 1
        if self._is_hinted:
            self._is_hinted = False
        else:
            self._next = (self._next + 1) % len(self.addresses)

    def pause_s(self, alone_s: float) -> float:
        """Before the next try; `alone_s` where there is only one address."""
        if not self.are_several:
            return alone_s
        rounds, place = divmod(self._tried, len(self.addresses))
        if place:
            return 0.0
        return _QUICK_S if rounds <= _QUICK_ROUNDS else _SLOW_S
