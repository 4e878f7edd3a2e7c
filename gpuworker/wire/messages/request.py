"""What a gateway asks for: of the dispatcher, and once a row is placed, of its worker."""

import msgspec

from gpuworker.wire.messages.base import Message


class Sampling(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    temperature: float = 1.0  # 0 means greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 means off
    seed: int = 0  # always chosen, by the gateway when the client gave none
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over the output
    frequency_penalty: float = 0.0  # over the output
    logit_bias: list[tuple[int, float]] = []
    min_tokens: int = 0  # before this many output tokens no stop id is sampled and no stop string looked for
    logprobs: int = -1  # -1: none; otherwise this many alternatives beside the chosen token
    prompt_logprobs: int = -1


class Grammar(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What the output must match from its first to its last character."""

    kind: str  # json_schema | json_object | regex | choice
    text: str = ""  # the schema, the expression, or a JSON list of strings


class Submit(Message, frozen=True):
    sid: int
    request_id: str  # UUIDv7
    attempt: int  # of its idempotency key, from 1: what bills
    tenant: str  # UUID of the tenant, from the API key
    model: str
    digest: str  # weights this request must run on
    klass: str  # interactive | batch; in a Run also batch_urgent: batch whose deadline is near
    prompt: bytes  # packed ids
    max_tokens: int
    sampling: Sampling
    stop: list[str] = []
    stop_ids: list[int] = []  # end-of-sequence ids; the text of these is never emitted
    ignore_eos: bool = False
    waited_ms: int = 0  # how long ago it arrived, when submitted again
    deadline_ms: int = 600_000  # time left
    start_ms: int = 0  # time left for its first token; 0: until its deadline
    n: int = 1  # choices; each has its own tokens, text and reason
    echo: bool = False  # the prompt's text begins every choice; max_tokens may then be 0
    grammar: Grammar | None = None
    weight: float = 1.0  # of the tenant, in shares of machine time
    cache_salt: str = ""  # narrows the sharing of cached prefixes within the tenant
    expected_tokens: int = 0  # output of all choices, as learned from this tenant; 0: nothing was
    retries: int = -1  # how often its client says it was tried before; -1: it does not say
    moves: int = 0  # replicas that it was lost with; each submission has a sid of its own
    emitted: int = 0  # so many ids at the end of `prompt` are output that a lost replica gave
    wants_ids: bool = False  # its frames carry the ids of its tokens, so that another replica can go on
    route_revision: int = 0  # of the model's route, as the gateway read it when it admitted the request
    is_whole: bool = False  # its client is told nothing before the last token, and waits until the deadline
    lost_on: str = ""  # incarnation of the replica to which its gateway lost the connection meanwhile


class Cancel(Message, frozen=True):
    """Gateway to dispatcher and, once placed, to the worker too. Unknown or ended rows: ignored."""

    sid: int
    reason: str = "cancelled"  # cancelled | deadline | error


class Pause(Message, frozen=True):
    """Gateway to worker: no more tokens of this row until Resume; it keeps its KV as long as it can."""

    sid: int


class Resume(Message, frozen=True):
    sid: int
