"""Machine time that flows were given on each replica: told as running totals, partly charged in advance.

A prompt's estimated cost is charged when it is placed, so that a decision does not wait for the report of the
last one; what a replica then reports is charged only beyond that.
"""

from policy.flow import Flow

MOST_FLOWS = 4_096  # remembered of each replica


class _Account:
    __slots__ = ("prepaid_us", "total_us")

    def __init__(self, total_us: int | None) -> None:
        self.total_us = (
            total_us  # that the replica told; None: not known, the next report says where it stands
        )
        self.prepaid_us = 0


class MachineTime:
    def __init__(self, most_flows: int = MOST_FLOWS) -> None:
        self._most_flows = most_flows
        self._accounts: dict[str, dict[Flow, _Account]] = {}
        self._forgetful: set[str] = set()  # replicas with more flows than are remembered

    def __len__(self) -> int:
        """Accounts that are kept."""
        return sum(map(len, self._accounts.values()))

    def prepay(self, replica: str, flow: Flow, cost_us: int) -> None:
        """Charged in advance, for work that was sent to the replica."""
        accounts = self._accounts.setdefault(replica, {})
        account = accounts.pop(flow, None)
        if account is None:
            account = _Account(None if replica in self._forgetful else 0)
        account.prepaid_us += cost_us
        self._keep(replica, flow, account)

    def refund(self, replica: str, flow: Flow, cost_us: int) -> int:
        """What of that was not used up yet: the work was not done after all."""
        account = self._accounts.get(replica, {}).get(flow)
        if account is None:
            return 0
        back_us = min(cost_us, account.prepaid_us)
        account.prepaid_us -= back_us
        return back_us

    def worked(self, replica: str, flow: Flow, total_us: int) -> int:
        """What is to be charged now that the replica's total stands there. Old totals change nothing.

        The first total of a flow that nothing was sent for is where counting starts: it is older than us.
        """
        account = self._accounts.get(replica, {}).get(flow)
        if account is None:
            self._accounts.setdefault(replica, {})
            self._keep(replica, flow, _Account(total_us))
            return 0
        if account.total_us is None or total_us == 0:  # 0: the replica forgot the flow, and counts anew
            account.total_us = total_us
            return 0
        new_us = total_us - account.total_us
        if new_us <= 0:
            return 0
        account.total_us = total_us
        paid_us = min(new_us, account.prepaid_us)
        account.prepaid_us -= paid_us
        return new_us - paid_us

    def gone(self, replica: str) -> None:
        self._accounts.pop(replica, None)
        self._forgetful.discard(replica)

    def _keep(self, replica: str, flow: Flow, account: _Account) -> None:
        """Last in order: the flow that was sent nothing for longest is forgotten first."""
        accounts = self._accounts[replica]
        accounts[flow] = account
        if len(accounts) > self._most_flows:
            del accounts[next(iter(accounts))]
            self._forgetful.add(replica)
