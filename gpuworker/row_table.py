"""The rows a worker has taken, and their way to the backend: at once, or when another worker has computed
their prompt. Whatever happens meanwhile, a row ends in the backend, so that there is one way to end."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuworker.backends.base import Backend
from gpuworker.engine.transfer import PrefillResult
from gpuworker.prefill_client import PrefillClient
from gpuworker.prefill_service import PrefillService
from gpuworker.wire.messages import Hello, RowFlow, RowKey, Run, Submit
from gpuworker.wire.tls import WireTls

TOKEN_BYTES = 4

Problem = tuple[str, str]  # code and message of a refusal


@dataclass(slots=True)
class _Row:
    choices: int
    flow: RowFlow
    is_prefilled: bool = False
    is_paused: bool = False


class RowTable:
    """A row is here from `take` until `remove`. `hello` is this worker's own greeting.

    `given` is told the prompt tokens of whatever the backend is given to compute. `prefills` serves other
    workers; their prompts take rows too.
    """

    def __init__(
        self, hello: Hello, backend: Backend, given: Callable[[int], None], tls: WireTls | None = None
    ) -> None:
        self._hello = hello
        self._backend = backend
        self._given = given
        self._rows: dict[RowKey, _Row] = {}
        self._client = PrefillClient(hello, backend.capacity.block_size, self._submit, tls)
        self.prefills = PrefillService(backend, self._prefill_problem, self._note)
        self.is_draining = False

    def __contains__(self, row: RowKey) -> bool:
        return row in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[RowKey]:
        return iter(self._rows)

    @property
    def is_empty(self) -> bool:
        """Nothing is computed here for anybody."""
        return not self._rows and not self.prefills.rows

    @property
    def prefilled(self) -> list[RowKey]:
        return [key for key, row in self._rows.items() if row.is_prefilled]

    @property
    def choices(self) -> list[int]:
        """Of each row, in the order of iteration."""
        return [row.choices for row in self._rows.values()]

    @property
    def flows(self) -> list[RowFlow]:
        """Of each row, in the order of iteration."""
        return [row.flow for row in self._rows.values()]

    def problem(self, run: Run) -> Problem | None:
        """Why it cannot be taken: code and message."""
        if self._hello.serves == "prefill":
            return "misrouted", "this worker computes prompts for others only"
        if run.worker not in ("", self._hello.incarnation):
            return "misrouted", "another process is meant"
        if run.submit.model != self._hello.model:
            return "misrouted", f"this worker serves {self._hello.model}, not {run.submit.model}"
        return self._problem(run.submit, max(run.submit.n, 1))

    def take(self, row: RowKey, run: Run) -> None:
        """The caller has asked for `problem`."""
        submit = run.submit
        flow = RowFlow(submit.tenant, submit.klass, submit.weight)
        self._rows[row] = _Row(max(submit.n, 1), flow)
        if run.prefill_from and self._backend.kv_dtype:
            self._client.fetch(row, submit, run.prefill_from)
        else:
            self._submit(row, submit)

    def prefilled_add(self, row: RowKey) -> None:
        self._rows[row].is_prefilled = True

    def remove(self, row: RowKey) -> None:
        del self._rows[row]

    def cancel(self, row: RowKey, reason: str) -> None:
        """Unknown rows are ignored."""
        if submit := self._client.give_up(row):
            self._submit(row, submit)
        self._backend.cancel(row, reason)

    def cancel_gateway(self, gateway: str, reason: str) -> None:
        for row in self._client.rows:
            if row.gateway == gateway:
                self.cancel(row, reason)
        self._backend.cancel_gateway(gateway, reason)

    def pause(self, row: RowKey, is_paused: bool) -> None:
        """Until it is said otherwise. Unknown rows are ignored."""
        if known := self._rows.get(row):
            known.is_paused = is_paused
            (self._backend.pause if is_paused else self._backend.resume)(row)

    def tick(self) -> None:
        self._client.tick()
        self.prefills.tick()

    def close(self) -> None:
        self._client.close()

    def _problem(self, submit: Submit, choices: int) -> Problem | None:
        digest = self._hello.digest
        rows = sum(row.choices for row in self._rows.values()) + self.prefills.rows
        if self.is_draining:
            return "draining", "the worker is shutting down"
        if submit.digest != digest:
            return "misrouted", f"this worker holds {digest}, not {submit.digest}"
        if len(submit.prompt) % TOKEN_BYTES:
            return "unservable", "the prompt is not a list of token ids"
        if rows and rows + choices > self._backend.capacity.max_rows:
            return "capacity", "all rows are taken"
        return None

    def _prefill_problem(self, submit: Submit) -> Problem | None:
        if self._hello.serves == "decode" or not self._backend.kv_dtype:
            return "misrouted", "this worker computes no prompts for others"
        return self._problem(submit, 1)  # whatever it will be decoded to

    def _submit(self, row: RowKey, submit: Submit, prefilled: PrefillResult | None = None) -> None:
        self._note(submit, prefilled)
        self._backend.submit(row, submit, prefilled)
        if self._rows[row].is_paused:  # while its prompt was computed elsewhere: the backend did not know it
            self._backend.pause(row)

    def _note(self, submit: Submit, prefilled: PrefillResult | None = None) -> None:
        spared = len(prefilled.keys) * self._backend.capacity.block_size if prefilled else 0
        self._given(max(len(submit.prompt) // TOKEN_BYTES - spared, 0))
