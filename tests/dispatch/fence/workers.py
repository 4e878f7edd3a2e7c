"""Worker processes of the simulation: the production server on a backend that tells."""

import asyncio
from random import Random
from typing import cast

from gpuworker.server import Settings, WorkerServer
from gpuworker.usage_journal import UsageJournal, WorkerIdentity
from gpuworker.wire.journal import Journal
from gpuworker.wire.messages import RowKey, Submit, pack_ids
from tests.dispatch.fence.backend import TellingBackend
from tests.dispatch.fence.ledger import Ledger
from tests.dispatch.fence.network import Network, Process

DRAIN_S = 0.5
PROMPT_ID = pack_ids([7])  # every prompt is of this one


class Blank:
    """A journal without a disk: usage is not what is looked at."""

    used_fraction = 0.0
    failure = ""


class WorkerNode:
    """`is_credulous`: it takes whatever it is sent, as if it had no fence; then the gateway's must hold."""

    def __init__(
        self,
        network: Network,
        ledger: Ledger,
        *,
        name: str,
        incarnation: str,
        digest: str,
        dispatcher: str,
        random: Random,
        is_credulous: bool,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.digest = digest
        self.is_credulous = is_credulous
        self.lies = False  # its next greeting names other weights
        if is_credulous:  # whoever greets takes the place of who was there
            ledger.disturbed.add(incarnation)
        self.process = Process(network, incarnation)
        self.backend = TellingBackend(digest, random, self._begun)
        self._ledger = ledger
        self._stop = asyncio.Event()
        self._settings = Settings(dispatcher, f"unix:/sim/{name}", "s", DRAIN_S)
        self.process.spawn(self._serve())

    @property
    def is_alive(self) -> bool:
        return self.process.is_alive

    def drain(self) -> None:
        self._ledger.disturbed.add(self.incarnation)
        self._stop.set()

    async def _serve(self) -> None:
        identity = WorkerIdentity(self.name, self.incarnation, "demo", self.digest)
        usage = UsageJournal(cast(Journal, Blank()), identity)
        await WorkerServer(self._settings, identity, self.backend, usage).serve(self._stop)
        self.process.is_alive = False

    def _begun(self, row: RowKey, submit: Submit) -> None:
        if self.is_credulous:
            return
        self._ledger.check(self.backend.is_warm, f"{self.incarnation} is given {row} before it is ready")
        emitted = pack_ids(list(range(submit.emitted)))
        is_whole = submit.prompt.startswith(PROMPT_ID) and submit.prompt.endswith(emitted)
        self._ledger.check(is_whole, f"{self.incarnation} is given {row} without all that was said")
        self._ledger.check(submit.digest == self.digest, f"{self.incarnation} runs {row} for {submit.digest}")
        is_own = row in self._ledger.sent[self.incarnation]
        self._ledger.check(is_own, f"{self.incarnation} runs {row}, which was sent to another process")
