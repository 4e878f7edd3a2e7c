"""Every message that crosses a process boundary on the token path, version 1.

Four roles speak: gateway, dispatcher, worker, controller. The dispatcher listens for all of them; a worker
listens for gateways (token frames go to them directly), for the controller (which collects usage records) and
for other workers (whose prompts it computes).
The first message on every connection is `Hello`; the listener answers `Welcome` or `Refusal` and closes.

A request is named on the wire by its `RowKey`: the gateway's incarnation and a number (`sid`) that this
incarnation never uses twice. `request_id` and `attempt` name it in usage rows and logs.
Token ids travel as packed little-endian uint32. Times are integer milliseconds; durations, never wall clocks.
"""

from gpuworker.wire.messages.base import (
    PROTOCOL_VERSION,
    Message,
    RowKey,
    new_incarnation,
    pack_ids,
    unpack_ids,
)
from gpuworker.wire.messages.fleet import FleetState, FlowView, GatewayView, QueueView, WorkerView
from gpuworker.wire.messages.greeting import Capacity, Heartbeat, Hello, Refusal, RowFlow, Welcome
from gpuworker.wire.messages.placing import (
    CancelRow,
    Ended,
    FlowWork,
    GatewayGone,
    Placed,
    Pressure,
    Refused,
    Report,
    Run,
    Shares,
    WorkerDown,
    WorkerUp,
)
from gpuworker.wire.messages.request import Cancel, Grammar, Pause, Resume, Sampling, Submit
from gpuworker.wire.messages.tokens import ChoiceEnd, End, Frame, KvBlocks, PromptLogprobs, TokenLogprobs
from gpuworker.wire.messages.usage import Collect, Collected, UsageCheckpoint

HEARTBEAT_MS = 250
SUSPECT_MS = 750
DEAD_MS = 1500
FLEET_MS = 500
FLEET_FLOWS = 64
SHARES_MS = 5_000
CHECKPOINT_TOKENS = 64

AnyMessage = (
    Hello
    | Welcome
    | Refusal
    | Heartbeat
    | Submit
    | Cancel
    | Pause
    | Resume
    | WorkerUp
    | WorkerDown
    | Placed
    | Ended
    | Run
    | CancelRow
    | GatewayGone
    | Report
    | Refused
    | Shares
    | Pressure
    | Frame
    | KvBlocks
    | Collect
    | Collected
    | FleetState
)

__all__ = [
    "CHECKPOINT_TOKENS",
    "DEAD_MS",
    "FLEET_FLOWS",
    "FLEET_MS",
    "HEARTBEAT_MS",
    "PROTOCOL_VERSION",
    "SHARES_MS",
    "SUSPECT_MS",
    "AnyMessage",
    "Cancel",
    "CancelRow",
    "Capacity",
    "ChoiceEnd",
    "Collect",
    "Collected",
    "End",
    "Ended",
    "FleetState",
    "FlowView",
    "FlowWork",
    "Frame",
    "GatewayGone",
    "GatewayView",
    "Grammar",
    "Heartbeat",
    "Hello",
    "KvBlocks",
    "Message",
    "Pause",
    "Placed",
    "Pressure",
    "PromptLogprobs",
    "QueueView",
    "Refusal",
    "Refused",
    "Report",
    "Resume",
    "RowFlow",
    "RowKey",
    "Run",
    "Sampling",
    "Shares",
    "Submit",
    "TokenLogprobs",
    "UsageCheckpoint",
    "Welcome",
    "WorkerDown",
    "WorkerUp",
    "WorkerView",
    "new_incarnation",
    "pack_ids",
    "unpack_ids",
]
