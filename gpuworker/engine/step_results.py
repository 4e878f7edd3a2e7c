"""One step's results on their way out: tokens to text, starts and ends to the output. No torch here."""

from gpuworker.engine.output import StepOutput
from gpuworker.engine.plan import Sampled
from gpuworker.engine.request import Request
from gpuworker.engine.sequence import Sequence
from gpuworker.engine.stats import Counters
from gpuworker.engine.text import TextStage
from gpuworker.wire.messages import RowKey, TokenLogprobs

# Nobody reads the text held back; of a row that goes on elsewhere it comes from there.
SILENT_ENDS = frozenset({"cancelled", "gateway_lost", "moved"})


class StepResults:
    """Implements `scheduler.RowSink`; made anew for each step."""

    def __init__(
        self, requests: dict[RowKey, Request], text: TextStage, counters: Counters, output: StepOutput
    ) -> None:
        self._requests = requests
        self._text = text
        self._counters = counters
        self._output = output

    def token(self, sequence: Sequence, sampled: Sampled) -> str:
        self._counters.output_tokens += 1
        text, reason = self._text.push(sequence, sampled.token)
        if sequence.output_len == 1:
            text = self._text.prompt_text(sequence) + text
        self._output.add_token(self._requests[sequence.key.row], sequence, text, sampled.logprobs)
        return reason

    def prompt_logprobs(self, sequence: Sequence, first: int, tokens: list[TokenLogprobs]) -> None:
        request = self._requests[sequence.key.row]
        if not request.is_export:
            self._output.add_prompt_logprobs(request, first, tokens)

    def started(self, sequence: Sequence) -> None:
        """It took a slot; only the first time of a request counts."""
        request = self._requests[sequence.key.row]
        if request.is_started or sequence is not request.first:
            return
        request.is_started = True
        self._counters.prompt_tokens += sequence.prompt_len
        self._counters.cached_tokens += sequence.cached_tokens
        if not request.is_export:
            self._output.add_checkpoint(request)

    def ended(self, sequence: Sequence, now_ms: float) -> Request:
        request = self._requests[sequence.key.row]
        request.open -= 1
        tail = self._text.end(sequence)
        if not request.open:
            del self._requests[request.row]
        if not request.is_export and not request.is_refused:
            silent = sequence.reason in SILENT_ENDS
            self._output.add_choice_end(request, sequence, "" if silent else tail, now_ms)
        return request
