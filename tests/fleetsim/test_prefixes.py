"""What prompts share: within a tenant, from the beginning, and of a conversation all that was said."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsim.arrival import PREFIX_TOKENS
from fleetsim.prefixes import (
    OPEN_CONVERSATIONS,
    ConversationForest,
    Conversations,
    SystemPrompts,
    forest_of,
)


@settings(max_examples=40, deadline=None)
@given(
    sharing=st.one_of(
        st.none(),
        st.builds(SystemPrompts, share=st.floats(0, 1), part=st.floats(0, 1), per_tenant=st.integers(1, 4)),
        st.builds(
            Conversations,
            follow_up=st.floats(0, 1),
            system=st.integers(1, 3000),
            per_tenant=st.integers(1, 3),
            think_s=st.floats(0, 5),
            most_tokens=st.integers(1, 4000),
        ),
    ),
    seed=st.integers(0, 2**32),
)
def test_a_prefix_is_never_longer_than_its_prompt_nor_of_two_tenants(sharing, seed):
    rng, forest = Random(seed), forest_of(sharing, 100)
    owner: dict[int, str] = {}
    for second in range(60):
        tenant = rng.choice(("a", "b"))
        prompt = forest.prompt(rng, tenant, second * 1_000_000, rng.randrange(1, 900), rng.randrange(1, 300))
        assert prompt.tokens >= 1
        assert len(prompt.prefix) * PREFIX_TOKENS <= prompt.tokens
        assert len(set(prompt.prefix)) == len(prompt.prefix)
        assert all(block >= 100 and owner.setdefault(block, tenant) == tenant for block in prompt.prefix)


def test_a_conversation_repeats_all_that_was_said_once_the_user_has_thought():
    forest = forest_of(Conversations(follow_up=1.0, system=640, think_s=10), 0)
    first = forest.prompt(Random(1), "a", 0, 100, 60)
    soon = forest.prompt(Random(1), "a", 9_000_000, 100, 60)
    later = forest.prompt(Random(1), "a", 10_000_000, 100, 60)
    assert (first.tokens, soon.tokens, later.tokens) == (740, 740, 740 + 60 + 100)
    assert later.prefix[: len(first.prefix)] == first.prefix
    assert soon.prefix[:10] == first.prefix[:10]
    assert soon.prefix[10:] != first.prefix[10:]


def test_a_conversation_that_gets_too_long_ends():
    forest = forest_of(Conversations(follow_up=1.0, system=64, think_s=0, most_tokens=500), 0)
    tokens = [forest.prompt(Random(1), "a", second, 100, 100).tokens for second in range(5)]
    assert tokens == [164, 364, 164, 364, 164]


def test_conversations_that_nobody_follows_are_not_kept_without_end():
    forest = forest_of(Conversations(follow_up=0.0), 0)
    for second in range(OPEN_CONVERSATIONS + 50):
        forest.prompt(Random(1), "a", second, 10, 10)
    assert isinstance(forest, ConversationForest)
    assert forest.open_conversations("a") == OPEN_CONVERSATIONS
