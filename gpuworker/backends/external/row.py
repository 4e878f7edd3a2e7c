"""One request on its way through an upstream: its answer becomes token rows, stop strings are found, tokens
counted. It reads no clock but its owner's, and decides nothing about other rows."""

from typing import Protocol

from tokenizers import Tokenizer

from gpuworker.backends.external.answer import Dialect, UpstreamRequest
from gpuworker.backends.external.choice import Choice
from gpuworker.backends.external.event_stream import BadStream, EventSplitter
from gpuworker.backends.external.failures import Failure, failure_of_error, failure_of_status
from gpuworker.backends.external.http_connection import Exchange
from gpuworker.backends.external.usage_check import output_judge, prompt_problem
from gpuworker.wire.messages import RowKey, TokenLogprobs, pack_ids

USAGE_GRACE_MS = 500.0  # after the end of the text, for the usage that follows it
_NOTHING: list[TokenLogprobs] = []


class RowOwner(Protocol):
    def now_ms(self) -> float: ...

    def row_begun(self, row: "ExternalRow") -> None:
        """Its first token is about to be given."""

    def row_given(
        self,
        row: "ExternalRow",
        choice: "Choice",
        count: int,
        text: str,
        logprobs: list[TokenLogprobs],
        ids: bytes,
    ) -> None:
        """`choice.output` counts them already."""

    def row_done(self, row: "ExternalRow", problems: list[str]) -> None:
        """Every choice has its reason. `problems`: where the upstream's usage is not ours."""

    def row_failed(self, row: "ExternalRow", failure: Failure) -> None: ...


class ExternalRow:
    """Is the sink of its exchange, and takes its answer. After `row_done` or `row_failed` it is silent."""

    def __init__(
        self,
        row: RowKey,
        request: UpstreamRequest,
        dialect: Dialect,
        tokenizer: Tokenizer,
        owner: RowOwner,
        *,
        eos_id: int | None,
    ) -> None:
        submit = request.submit
        self.row, self.submit = row, submit
        self.prompt_tokens = len(request.ids) - submit.emitted
        self.cached_tokens = 0
        self.choices = [Choice(index, submit.stop, submit.emitted) for index in range(submit.n)]
        for choice in self.choices:
            choice.lead = request.echoed_text
        if request.emitted_text:  # a stop string may have begun there
            self.choices[0].matcher.feed(request.emitted_text)
        self.arrived_ms = self.last_ms = owner.now_ms()
        self.deadline_ms = self.arrived_ms + submit.deadline_ms
        self.first_ms: float | None = None
        self.has_started = False  # the upstream took it
        self.stopped_ms: float | None = None  # when all choices had ended; usage may follow
        self.is_over = self.is_paused = False
        self.exchange: Exchange | None = None
        self._dialect, self._tokenizer, self._owner = dialect, tokenizer, owner
        self._stop_ids = frozenset(request.stop_ids)
        self._eos_id = eos_id
        self._waits_for_usage = dialect.keeps_stops(submit.stop)
        self._events = EventSplitter()
        self._status = 0
        self._told: int | None = None
        self._problems: list[str] = []

    @property
    def output_tokens(self) -> int:
        return sum(choice.output for choice in self.choices)

    def leave(self) -> None:
        """It ended otherwise: the upstream is told by closing its connection."""
        self.is_over = True
        if self.exchange is not None:
            self.exchange.cancel()

    def pause(self, is_paused: bool) -> None:
        self.is_paused = is_paused
        self.last_ms = self._owner.now_ms()  # its silence was ours
        if self.exchange is not None:
            self.exchange.pause(is_paused)

    def settle_unasked(self) -> None:
        """Only the prompt was asked for: the upstream has no part in it."""
        self.has_started = True
        for choice in self.choices:
            choice.reason = "length"
        self.settle()

    def settle(self) -> None:
        """All choices have ended: count, and say so."""
        problems = self._problems
        for choice in self.choices:
            choice.reason = choice.reason or "stop"
        counted = self.output_tokens - self.submit.emitted
        has_ids = all(choice.has_ids for choice in self.choices)
        own = counted if has_ids else sum(choice.text_tokens(self._tokenizer) for choice in self.choices)
        verdict = output_judge(told=self._told, counted=counted, own=own)
        if verdict.problem:
            problems.append(verdict.problem)
        if (rest := verdict.output_tokens - counted) > 0:
            first = self.choices[0]
            first.output += rest
            self._owner.row_given(self, first, rest, "", _NOTHING, b"")
        self.is_over = True
        self._owner.row_done(self, problems)

    # -- Sink ---------------------------------------------------------------------------------------------

    def started(self, status: int) -> None:
        self._status = status
        self.has_started = status == 200

    def data(self, received: bytes) -> None:
        if self._status != 200:
            return
        try:
            self._take(self._events.feed(received))
        except BadStream as error:
            self._fail(failure_of_error(error))

    def ended(self, failure: str) -> None:
        if self.is_over:
            return
        if failure:
            self._fail(Failure("broken" if self.first_ms else "unreachable", failure))
        elif self._status != 200:
            self._fail(failure_of_status(self._status))
        else:
            try:
                self._take(self._events.end())
            except BadStream as error:
                self._fail(failure_of_error(error))
            if not self.is_over:
                self._upstream_done()

    def _take(self, events: list[bytes]) -> None:
        if events:
            self.last_ms = self._owner.now_ms()
        take = self._dialect.take
        for event in events:
            if self.is_over:
                return
            if take(event, self):
                self._upstream_done()
                return

    def _upstream_done(self) -> None:
        if all(choice.reason for choice in self.choices):
            self.settle()
        else:
            self._fail(Failure("broken", "its answer ended early"))

    def _fail(self, failure: Failure) -> None:
        if not self.is_over:
            self.leave()
            self._owner.row_failed(self, failure)

    # -- AnswerTaker --------------------------------------------------------------------------------------

    def piece(self, choice: int, text: str, ids: list[int] | None, logprobs: list[TokenLogprobs]) -> None:
        if not 0 <= choice < len(self.choices):
            raise BadStream(f"it answers choice {choice} of {len(self.choices)}")
        one = self.choices[choice]
        if one.reason:
            return  # it was stopped here, and the upstream did not know yet
        submit = self.submit
        if self.first_ms is None:
            self.first_ms = self.last_ms
            self._owner.row_begun(self)
        if ids is None:
            count, packed, one.has_ids = 1, b"", False
        else:
            count = len(ids)
            packed = pack_ids(ids) if submit.wants_ids else b""
            one.last_id = ids[-1] if ids else one.last_id
            if count == 1 and ids[0] in self._stop_ids:
                self._stop_at(one, ids[0], packed)
                return
        if not one.has_ids:
            one.texts.append(text)
        if one.output + count > submit.max_tokens:  # more than was asked for: nobody pays for that
            count, packed = max(submit.max_tokens - one.output, 0), b""
        one.output += count
        if one.output >= submit.sampling.min_tokens:
            shown = one.matcher.feed(text)
        else:
            shown = one.matcher.flush() + text
        if one.lead:
            shown, one.lead = one.lead + shown, ""
        if submit.sampling.logprobs < 0:
            logprobs = _NOTHING
        if count or shown:
            self._owner.row_given(self, one, count, shown, logprobs, packed)
        if one.matcher.matched:
            self._end_choice(one, "stop", one.matcher.matched)

    def choice_finished(self, choice: int, reason: str, stopped_by: str | int | None) -> None:
        if not 0 <= choice < len(self.choices):
            raise BadStream(f"it ends choice {choice} of {len(self.choices)}")
        one = self.choices[choice]
        if one.reason:
            return
        if reason == "stop" and stopped_by is None and self.submit.grammar is None:
            stopped_by = one.last_id if one.has_ids and one.last_id >= 0 else self._eos_id
        self._end_choice(one, reason, stopped_by if reason == "stop" else None, is_told=True)

    def usage(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        self._told = output_tokens
        self.cached_tokens = min(max(cached_tokens, 0), self.prompt_tokens)
        own = self.prompt_tokens + self.submit.emitted
        if prompt_tokens and (problem := prompt_problem(told=prompt_tokens, own=own)):
            self._problems.append(problem)

    # -- inside -------------------------------------------------------------------------------------------

    def _stop_at(self, one: Choice, token: int, packed: bytes) -> None:
        """A token id of the request's, which the upstream does not know to end it."""
        one.output += 1
        self._owner.row_given(self, one, 1, "", _NOTHING, packed)
        self._end_choice(one, "stop", token)

    def _end_choice(
        self, one: Choice, reason: str, stopped_by: str | int | None, *, is_told: bool = False
    ) -> None:
        one.reason, one.stopped_by = reason, stopped_by
        if tail := one.tail():
            self._owner.row_given(self, one, 0, tail, _NOTHING, b"")
        if not all(choice.reason for choice in self.choices):
            return
        if is_told or self._waits_for_usage:
            self.stopped_ms = self._owner.now_ms()
        else:
            self.leave()
            self.settle()
