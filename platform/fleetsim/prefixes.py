"""What prompts have in common: system prompts shared within a tenant, and conversations that grow.

Gives every prompt the ids of its first blocks (`Arrival.prefix`). Ids are counted up from a first one
and never of two tenants; which replica holds what is no concern of this module.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import count, islice
from random import Random
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from fleetsim.arrival import PREFIX_TOKENS
from fleetsim.lengths import Length, Tokens, draw

OPEN_CONVERSATIONS = 1000  # of a tenant; one more is never followed up
Part = Annotated[float, Meta(ge=0, le=1)]
PerTenant = Annotated[int, Meta(ge=1, le=10_000)]


class SystemPrompts(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="system_prompts"
):
    """`share` of a tenant's requests begin with one of its system prompts, each for `part` of its length."""

    share: Part
    part: Part = 0.8
    per_tenant: PerTenant = 1


class Conversations(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="conversations"
):
    """Every conversation begins with one of its tenant's system prompts. With the chance `follow_up`, and if
    there is one that was asked at least `think_s` ago, a request goes on with it: its prompt is all that was
    said, the answer too, and a new message. One that would get longer than `most_tokens` ends instead.

    The length of prompts that the workload names is the length of a message. The answer's blocks count as
    new when they come back in a prompt.
    """

    follow_up: Part
    system: Length = 512
    per_tenant: PerTenant = 1
    think_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    most_tokens: Tokens = 8192


Sharing = SystemPrompts | Conversations


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: int
    prefix: tuple[int, ...]


class Forest(Protocol):
    """The prefixes of one workload's prompts, over its whole time: has state."""

    def prompt(
        self, rng: Random, tenant: str, at_us: int, message_tokens: int, answer_tokens: int
    ) -> Prompt: ...


def forest_of(sharing: SystemPrompts | Conversations | None, first_id: int) -> Forest:
    match sharing:
        case None:
            return Unshared()
        case SystemPrompts():
            return SystemForest(sharing, _Blocks(first_id))
        case Conversations():
            return ConversationForest(sharing, _Blocks(first_id))


class Unshared:
    def prompt(self, rng: Random, tenant: str, at_us: int, message_tokens: int, answer_tokens: int) -> Prompt:
        return Prompt(message_tokens, ())


@dataclass(slots=True)
class _Blocks:
    """New ids, and the tenants' system prompts, which are as long as anybody asked them to be."""

    first_id: int
    _ids: "count[int]" = field(init=False)
    _systems: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ids = count(self.first_id)

    def new(self, blocks: int) -> tuple[int, ...]:
        return tuple(islice(self._ids, blocks))

    def system(self, tenant: str, number: int, blocks: int) -> tuple[int, ...]:
        chain = self._systems.setdefault((tenant, number), [])
        chain.extend(self.new(blocks - len(chain)) if blocks > len(chain) else ())
        return tuple(chain[:blocks])


@dataclass(slots=True)
class SystemForest:
    sharing: SystemPrompts
    blocks: _Blocks

    def prompt(self, rng: Random, tenant: str, at_us: int, message_tokens: int, answer_tokens: int) -> Prompt:
        number = rng.randrange(self.sharing.per_tenant)
        if rng.random() >= self.sharing.share:
            return Prompt(message_tokens, ())
        blocks = int(message_tokens * self.sharing.part) // PREFIX_TOKENS
        return Prompt(message_tokens, self.blocks.system(tenant, number, blocks))


@dataclass(frozen=True, slots=True)
class _Said:
    """A conversation after an answer."""

    follow_from_us: int
    tokens: int
    prefix: tuple[int, ...]


@dataclass(slots=True)
class ConversationForest:
    sharing: Conversations
    blocks: _Blocks
    _open: dict[str, deque[_Said]] = field(default_factory=dict)
    _system_tokens: dict[tuple[str, int], int] = field(default_factory=dict)

    def open_conversations(self, tenant: str) -> int:
        """That a request may go on with."""
        return len(self._open.get(tenant, ()))

    def prompt(self, rng: Random, tenant: str, at_us: int, message_tokens: int, answer_tokens: int) -> Prompt:
        open_ = self._open.setdefault(tenant, deque())
        follows = rng.random() < self.sharing.follow_up
        before = open_.popleft() if follows and open_ and open_[0].follow_from_us <= at_us else None
        if before is None or before.tokens + message_tokens > self.sharing.most_tokens:
            before = self._begun(rng, tenant)
        tokens = min(before.tokens + message_tokens, self.sharing.most_tokens)
        blocks = tokens // PREFIX_TOKENS
        prefix = before.prefix[:blocks] + self.blocks.new(max(0, blocks - len(before.prefix)))
        if len(open_) < OPEN_CONVERSATIONS:
            open_.append(_Said(at_us + round(self.sharing.think_s * 1e6), tokens + answer_tokens, prefix))
        return Prompt(tokens, prefix)

    def _begun(self, rng: Random, tenant: str) -> _Said:
        number = rng.randrange(self.sharing.per_tenant)
        tokens = self._system_tokens.get((tenant, number))
        if tokens is None:
            tokens = self._system_tokens[tenant, number] = draw(self.sharing.system, rng)
        return _Said(0, tokens, self.blocks.system(tenant, number, tokens // PREFIX_TOKENS))
