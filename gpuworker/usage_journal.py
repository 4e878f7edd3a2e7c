"""What the worker computed for whom, kept on its own disk until the controller holds it.

The reaper bills from these records what a dead gateway could not report itself.
"""

import logging
import time
from dataclasses import dataclass

import msgspec

from gpuworker.engine.output import Checkpoint
from gpuworker.wire.journal import Journal, JournalFull
from gpuworker.wire.messages import Collect, Collected, UsageCheckpoint
from policy.flow import BATCH, BATCH_URGENT

MAX_COLLECTED = 5_000
ADMIT_BELOW = 0.8  # of the quota: service that cannot be billed is a loss

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    id: str
    incarnation: str
    model: str
    digest: str
    epoch: int = 0  # how often it was started


class UsageJournal:
    """Owned by the event loop."""

    def __init__(self, journal: Journal, identity: WorkerIdentity) -> None:
        self._journal = journal
        self._identity = identity
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(UsageCheckpoint).decode
        self._lost = 0

    @property
    def may_admit(self) -> bool:
        return self._journal.used_fraction < ADMIT_BELOW

    @property
    def failure(self) -> str:
        return self._journal.failure

    def record(self, checkpoints: list[Checkpoint]) -> None:
        """Raises JournalFailed: the process must end."""
        at_ms = int(time.time() * 1000)
        for checkpoint in checkpoints:
            try:
                self._journal.append_nowait(self._encode(self._usage(checkpoint, at_ms)))
            except JournalFull:
                self._lost += 1
                logger.error(
                    "usage journal full: request_id=%s not recorded, lost=%d",
                    checkpoint.submit.request_id,
                    self._lost,
                )

    def _usage(self, checkpoint: Checkpoint, at_ms: int) -> UsageCheckpoint:
        submit = checkpoint.submit
        return UsageCheckpoint(
            request_id=submit.request_id,
            attempt=submit.attempt,
            tenant=submit.tenant,
            gateway=checkpoint.row.gateway,
            worker=self._identity.id,
            worker_incarnation=self._identity.incarnation,
            model=self._identity.model,
            digest=self._identity.digest,
            klass=BATCH if submit.klass == BATCH_URGENT else submit.klass,  # as the client asked
            prompt_tokens=checkpoint.prompt_tokens,
            cached_tokens=checkpoint.cached_tokens,
            output_tokens=checkpoint.output_tokens,
            reason="" if checkpoint.reason == "moved" else checkpoint.reason,  # another worker ends it
            at_ms=at_ms,
            moves=submit.moves,
        )

    def collect(self, request: Collect) -> Collected:
        """Asking for what follows a position acknowledges what lies before it, in this journal only."""
        journal = self._journal
        if request.journal == journal.id and request.after <= journal.end:
            journal.acknowledge(request.after)
        after = journal.acknowledged
        payloads, position = journal.read(after, min(max(request.limit, 1), MAX_COLLECTED))
        records = []
        for payload in payloads:
            try:
                records.append(self._decode(payload))
            except msgspec.MsgspecError as error:
                logger.error("usage journal: skipping a record that is none: %s", error)
        more = position < journal.end
        return Collected(journal=journal.id, records=records, position=position, more=more)

    async def close(self) -> None:
        await self._journal.close()
