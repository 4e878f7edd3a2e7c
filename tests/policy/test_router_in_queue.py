"""The names of prompts in the queue: what follows goes where it began, and what is new is charged."""

from random import Random

from policy.model_queue import ModelQueue
from policy.prefix import Chain
from policy.queue_settings import QueueSettings
from policy.router_index import NAME_TOKENS
from policy.waiting import Placement, Waiting
from tests.policy.queue_fleet import replica_make, waiting_make

NAMES = [f"name {number}" for number in range(4)]


def asks(key: int, *, prompt: int = 300) -> Waiting:
    waiting = waiting_make(key, prompt=prompt)
    waiting.chains = (Chain(NAMES),)
    return waiting


def queue_make(*rows: int) -> ModelQueue:
    queue = ModelQueue(QueueSettings(), 0.0, Random(1))
    queue.replicas_set([replica_make(f"r{number}", rows=count) for number, count in enumerate(rows)])
    for number in range(len(rows)):
        queue.prefixes.joined(f"r{number}")
    return queue


def run(queue: ModelQueue, waiting: Waiting, now_ms: float) -> Placement:
    """To its end."""
    assert queue.submit(waiting, now_ms) is None
    placement = queue.take(now_ms)
    assert placement is not None
    queue.prefilled(waiting.key)
    queue.ended(waiting.key, now_ms)
    queue.replica_update(replica_make(placement.replica))
    return placement


def test_what_follows_begins_where_it_began_though_nothing_was_reported() -> None:
    queue = queue_make(0, 0, 0, 0)
    first = run(queue, asks(1), 0.0)
    assert first.waiting.cached_tokens == 0
    # Of a beginning that nobody knew only the first name is kept; of one that comes again, all
    second = run(queue, asks(2), 10.0)
    assert (second.replica, second.waiting.cached_tokens) == (first.replica, NAME_TOKENS - 1)
    third = run(queue, asks(3), 20.0)
    assert (third.replica, third.waiting.cached_tokens) == (first.replica, 4 * NAME_TOKENS - 1)


def test_a_prompt_is_charged_by_what_its_own_replica_holds() -> None:
    # Given r1, which holds all of it and has no room
    queue = queue_make(0, 20)
    queue.prefixes.reported("r1", NAMES, ())
    waiting = asks(1)
    waiting.cached_tokens = queue.prefixes.most(waiting.chains, 0.0)
    assert waiting.cached_tokens == 4 * NAME_TOKENS
    # Then it begins elsewhere, and all of it has to be computed there
    placement = run(queue, waiting, 0.0)
    assert (placement.replica, waiting.cached_tokens, waiting.new_tokens) == ("r0", 0, 300)


def test_names_are_the_same_for_several_that_ask_at_once() -> None:
    made: list[str] = []

    def names() -> object:
        for name in NAMES:
            made.append(name)
            yield name

    chain = Chain(names())  # type: ignore[arg-type]
    one, other = iter(chain), iter(chain)
    assert [next(one), next(one), *other] == [*NAMES[:2], *NAMES]
    assert [*one, *chain] == [*NAMES[2:], *NAMES]
    assert made == NAMES
