"""A simulated worker, as its process behaves towards dispatcher and gateways."""

from collections import Counter
from dataclasses import dataclass

from gpuworker.wire.messages import (
    AnyMessage,
    CancelRow,
    FlowWork,
    GatewayGone,
    Refused,
    Report,
    RowFlow,
    RowKey,
    Run,
    Shares,
)
from tests.dispatch.client_node import Client, Fleet
from tests.dispatch.network import Clock
from tests.dispatch.peers import hello, report

BLOCKS, MAX_ROWS, MAX_TOKENS = 48, 4, 768
ROW_LIMIT = 3  # that decode within the target latency
STEP_COST = [10.0, 5.0, 0.2, 0.0, 0.0]  # milliseconds, as a worker reports what its steps cost

Flow = tuple[str, str]  # tenant, class


@dataclass
class Row:
    blocks: int
    prompt: int
    left: int  # steps
    flow: Flow
    weight: float
    choices: int = 1
    is_remote: bool = False  # another worker was asked for its prompt
    is_fetching: bool = False  # and has not answered
    computed: int = 0
    holds: bool = False

    @property
    def pending(self) -> int:
        return 0 if self.is_fetching else self.prompt - self.computed


class Worker(Client):
    """Admits rows in order while they fit, prefills and decodes; reports and sends frames each step."""

    def __init__(
        self,
        clock: Clock,
        fleet: Fleet,
        name: str,
        incarnation: str,
        *,
        digest: str,
        serves: str,
        refusal_rate: float,
        tells_work: bool = True,
    ) -> None:
        self.digest = digest
        self.serves = serves
        self.rows: dict[RowKey, Row] = {}
        self.over: list[Flow] = []  # as the dispatcher said
        self.work_us: Counter[Flow] = Counter()
        self._untold: set[Flow] = set()
        self._tells_work = tells_work
        self._prefilled: list[RowKey] = []
        self._ended: list[RowKey] = []
        self._seq = 0
        self._runs = 0
        self._refusal_rate = refusal_rate
        self.is_draining = False
        self.longest_row = 60  # steps
        super().__init__(clock, fleet, name, incarnation)
        self._is_stepping = False

    @property
    def held_blocks(self) -> int:
        return sum(row.blocks for row in self.rows.values() if row.holds)

    @property
    def held_rows(self) -> int:
        return sum(row.choices for row in self.rows.values())

    def greeting(self) -> AnyMessage:
        self._runs = 0
        self.over, self._untold = [], set(self.work_us)
        self._prefilled, self._ended = [r for r, row in self.rows.items() if row.computed >= row.prompt], []
        return hello(
            "worker",
            self.name,
            self.incarnation,
            digest=self.digest,
            blocks=BLOCKS,
            max_rows=MAX_ROWS,
            max_tokens=MAX_TOKENS,
            serves=self.serves,
            running=list(self.rows),
            flows=[RowFlow(*row.flow, row.weight) for row in self.rows.values()] if self._tells_work else [],
        )

    def joined(self) -> None:
        self.beat()

    def beat(self) -> None:
        if self.is_joined:
            self._seq += 1
            pending = sum(row.pending for row in self.rows.values())
            prefilled, self._prefilled = self._prefilled, []
            ended, self._ended = self._ended, []
            self.send(self._report(pending, prefilled, ended))

    def _report(self, pending: int, prefilled: list[RowKey], ended: list[RowKey]) -> Report:
        work = [FlowWork(*flow, self.work_us[flow]) for flow in sorted(self._untold)]
        self._untold.clear()
        return report(
            self._seq,
            free_blocks=BLOCKS - self.held_blocks,
            pending=pending,
            prefilled=prefilled,
            ended=ended,
            runs=self._runs,
            cost=STEP_COST if self._tells_work else [],
            row_limit=ROW_LIMIT if self._tells_work else 0,
            work=work if self._tells_work else [],
        )

    def told(self, message: AnyMessage) -> None:
        match message:
            case Run():
                self._run(message)
            case CancelRow(row=row, reason=reason):
                self.cancel(row, reason)
            case GatewayGone(gateway=gateway):
                self.gateway_gone(gateway)
            case Shares(digest=digest, over=over):
                assert digest == self.digest, "shares of other weights"
                self.over = over

    def _run(self, run: Run) -> None:
        self._runs += 1
        row, choices = RowKey(run.gateway, run.submit.sid), run.submit.n
        if row in self.rows:
            return
        code = ""
        if self.is_draining:
            code = "draining"
        elif (
            self.rows and self.held_rows + choices > MAX_ROWS
        ) or self.clock.random.random() < self._refusal_rate:
            code = "capacity"
        elif self.clock.random.random() < self._refusal_rate / 4:
            code = "unservable"
        if code:
            self.send(Refused(row=row, code=code, message=""))
            return
        prompt = len(run.submit.prompt) // 4
        blocks = min(-(-(prompt + 1) // 16) + choices - 1, BLOCKS)  # alone, choices take turns
        steps = self.clock.random.randint(1, self.longest_row)
        is_remote = bool(run.prefill_from)
        flow = (run.submit.tenant, run.submit.klass)
        weight = run.submit.weight
        state = Row(blocks, prompt, steps, flow, weight, choices, is_remote=is_remote, is_fetching=is_remote)
        self.rows[row] = state
        self.fleet.accepted(self, run)
        if is_remote:
            spares = prompt // 16 * 16 if self.clock.random.random() < 0.7 else 0
            delay_ms = self.clock.random.uniform(1, 3_000)
            self.clock.after(delay_ms, lambda: self.post(lambda: self._fetched(state, spares)))
        self._step_soon()

    def _fetched(self, row: Row, spares: int) -> None:
        """The prefill worker answered, or something went wrong."""
        row.is_fetching, row.computed = False, min(spares, row.prompt - 1)

    def cancel(self, row: RowKey, reason: str) -> None:
        if row in self.rows:
            self._end(row, reason)

    def gateway_gone(self, incarnation: str) -> None:
        for row in [row for row in self.rows if row.gateway == incarnation]:
            self._end(row, "gateway_lost")

    def _end(self, row: RowKey, reason: str) -> None:
        del self.rows[row]
        self._ended.append(row)
        self._frame(row, reason)

    def _frame(self, row: RowKey, end: str) -> None:
        """Straight to the gateway, past the dispatcher."""
        if gateway := self.fleet.gateway(row.gateway):
            delay_ms = self.clock.random.uniform(0.1, 20)
            self.clock.after(delay_ms, lambda: gateway.post(lambda: gateway.framed(self, row.sid, end)))

    def _step_soon(self) -> None:
        if self.rows and not self._is_stepping:
            self._is_stepping = True
            step_ms = self.clock.random.uniform(10, 80)
            self.clock.after(step_ms, lambda: self.post(lambda: self._step(step_ms), is_timer=True))

    def _step(self, step_ms: float) -> None:
        self._is_stepping = False
        budget = 256
        for flow, rows in Counter(row.flow for row in self.rows.values()).items():
            self.work_us[flow] += int(1_000 * step_ms * rows / len(self.rows))
            self._untold.add(flow)
        for row, state in list(self.rows.items()):
            if state.is_fetching:
                continue
            if not state.holds:
                if self.held_blocks + state.blocks > BLOCKS:
                    break
                state.holds = True
            if state.computed < state.prompt:
                taken = min(budget, state.prompt - state.computed)
                state.computed += taken
                budget -= taken
                if taken and state.computed == state.prompt:
                    self._prefilled.append(row)
                    self._frame(row, "")
                continue
            state.left -= 1
            if state.left <= 0:
                self._end(row, "length")
        if self._prefilled or self._ended:
            self.beat()
        self._step_soon()
