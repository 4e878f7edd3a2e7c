"""What a request must be like for an upstream, and what is asked of it."""

from functools import partial

import msgspec
from tokenizers import Tokenizer

from gpuworker.backends.external.answer import Unsayable, UpstreamRequest
from gpuworker.backends.external.prompt_text import PromptText
from gpuworker.backends.external.tally import BLOCK_SIZE
from gpuworker.engine.intake import submit_problem
from gpuworker.manifest import Manifest
from gpuworker.wire.messages import Sampling, Submit, pack_ids, unpack_ids
from policy.prefix import prefix_root


class Intake:
    def __init__(
        self, tokenizer: Tokenizer, manifest: Manifest, eos_ids: frozenset[int], secret: bytes
    ) -> None:
        self.tokenizer = tokenizer
        self.max_tokens = manifest.max_context_tokens
        known = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self._vocab_size = max(known, int(manifest.config.get("vocab_size", 0)))
        self._eos_ids, self.eos_id = eos_ids, min(eos_ids, default=None)
        self._secret, self._digest = secret, manifest.digest
        self._text = PromptText(tokenizer)

    def blocks_of_row(self, max_rows: int) -> int:
        """Memory is the upstream's affair: so many that rows are what is scarce."""
        return -(-self.max_tokens // BLOCK_SIZE) + 2 * max_rows + 2

    def request(self, submit: Submit) -> UpstreamRequest:
        """Raises Unsayable."""
        ids = unpack_ids(submit.prompt)
        room = self.max_tokens - len(ids) + submit.emitted
        if problem := submit_problem(submit, ids, room=room, vocab_size=self._vocab_size):
            raise Unsayable(problem[1], problem[0])
        submit = msgspec.structs.replace(submit, max_tokens=min(submit.max_tokens, room))
        return UpstreamRequest(
            submit=submit,
            ids=ids,
            say=partial(self._text.say, ids),
            max_tokens=submit.max_tokens - submit.emitted,
            stop_ids=[token for token in dict.fromkeys(submit.stop_ids) if token not in self._eos_ids],
            cache_salt=prefix_root(
                self._secret, submit.tenant, self._digest, "", "external", submit.cache_salt
            ).hex(),
            emitted_text=self._shown(ids[-submit.emitted :]) if submit.emitted else "",
            echoed_text=self._shown(ids) if submit.echo else "",
        )

    def _shown(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def probe(self) -> UpstreamRequest:
        """One token after a short prompt, of no tenant."""
        ids: list[int] = self.tokenizer.encode("1").ids or [0]
        return self.request(
            Submit(
                sid=0,
                request_id="probe",
                attempt=1,
                tenant="",
                model="",
                digest=self._digest,
                klass="interactive",
                prompt=pack_ids(ids),
                max_tokens=1,
                sampling=Sampling(temperature=0.0),
            )
        )
