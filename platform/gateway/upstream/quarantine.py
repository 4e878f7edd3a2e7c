"""Requests that replicas die of: seen on several that crashed, they are refused for a while on this gateway.

Evidence is a replica whose process ended without having said that it stops, and a request that was there and
had no token of it yet. Others die with it, so one or two replicas prove nothing.
"""

import secrets
import time
from collections import OrderedDict
from hashlib import blake2b

import msgspec

from gateway.errors import ApiError
from gateway.upstream.stream import Stream
from gpuworker.wire.messages import Submit

LOST_WITH = 3  # replicas; of the last one it may not be known yet that it crashed
REFUSED_S = 600.0
MOST_REQUESTS, MOST_REPLICAS = 1_024, 256


class Quarantine:
    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._lost: OrderedDict[bytes, dict[str, float]] = OrderedDict()  # incarnations, and when
        self._crashed: OrderedDict[str, None] = OrderedDict()

    def crashed(self, incarnation: str) -> None:
        self._crashed[incarnation] = None
        if len(self._crashed) > MOST_REPLICAS:
            self._crashed.popitem(last=False)

    def lost(self, stream: Stream) -> None:
        """Its replica was lost before it gave a token of it."""
        name = self._name(stream.submit, stream.prompt_bytes)
        self._lost.setdefault(name, {})[stream.worker] = time.monotonic()
        self._lost.move_to_end(name)
        if len(self._lost) > MOST_REQUESTS:
            self._lost.popitem(last=False)

    def refusal(self, stream: Stream) -> ApiError | None:
        if not self._lost:  # nearly always
            return None
        now = time.monotonic()
        name = self._name(stream.submit, stream.prompt_bytes)
        lost = {worker for worker, at in self._lost.get(name, {}).items() if now - at < REFUSED_S}
        crashed = lost & self._crashed.keys()
        if len(lost) < LOST_WITH or len(crashed) < LOST_WITH - 1:
            return None
        message = f"{len(lost)} replicas were lost with this request: it is not run again for ten minutes"
        return ApiError("request_quarantined", message)

    def _name(self, submit: Submit, prompt: bytes) -> bytes:
        """Of whose it is and what decides the computation; not of the seed: that is chosen anew each time."""
        what = (
            submit.tenant,
            submit.digest,
            prompt,
            submit.max_tokens,
            msgspec.structs.replace(submit.sampling, seed=0),
            submit.stop,
            submit.stop_ids,
            submit.n,
            submit.grammar,
        )
        return blake2b(msgspec.msgpack.encode(what), key=self._key, digest_size=16).digest()
