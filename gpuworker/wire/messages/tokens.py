"""What a worker computed: tokens for gateways, KV of prompts for other workers."""

import msgspec

from gpuworker.wire.messages.base import Message


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Natural logarithms of the model's own probabilities, before penalties and temperature."""

    token: int
    logprob: float
    top: list[tuple[int, float]]  # most likely first; as many as were asked for


class ChoiceEnd(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """A choice of a request with n > 1 ended. The request's End follows when all have."""

    sid: int
    choice: int
    reason: str
    output_tokens: int
    stopped_by: str | int | None = None  # as in End


class PromptLogprobs(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """For prompt tokens `first`, `first + 1`, …; a prompt's first token has none and is left out."""

    sid: int
    first: int
    tokens: list[TokenLogprobs]


class End(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """Final word about a row; only these counts bill. With n > 1 the output of all choices is counted, and
    the reason is that of choice 0. `moved` with a message: the server that the worker stands for failed."""

    sid: int
    reason: str  # stop | length | cancelled | deadline | error | gateway_lost | moved: it stops
    prompt_tokens: int  # 0 when no prefill was begun
    cached_tokens: int  # of the prompt, found in the prefix cache
    output_tokens: int
    queue_ms: int  # in the worker, before its first prefill step
    prefill_ms: int
    decode_ms: int
    preemptions: int
    message: str = ""
    stopped_by: str | int | None = None  # the stop string or the token id that ended choice 0; else None


class Frame(Message, frozen=True):
    """What one step produced for one gateway. Columns of equal length, then the rows that ended.

    `starts[i]` is the number of output tokens of row i before this frame, so that a gap shows.
    A text may be empty while bytes of a character or a possible stop string are held back.
    """

    step: int
    sids: list[int]
    starts: list[int]
    counts: list[int]
    texts: list[str]
    ends: list[End] = []
    choices: list[int] = []  # empty: every entry is of choice 0
    logprobs: list[list[TokenLogprobs]] = []  # empty: nobody asked; otherwise a list for each entry
    prompts: list[PromptLogprobs] = []
    choice_ends: list[ChoiceEnd] = []
    ids: list[bytes] = []  # packed ids of each entry; empty: nobody asked; an entry that did not is b""


class KvBlocks(Message, frozen=True):
    """KV of consecutive full blocks of a prompt, in order, after those of the messages before."""

    sid: int  # of the Submit
    keys: list[bytes]  # their names, see policy.prefix
    blocks: list[bytes]
    more: bool  # another message follows
    cached_tokens: int = 0  # of the prompt, not computed for this request; said in each message
