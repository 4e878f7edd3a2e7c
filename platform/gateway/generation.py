"""What every dialect is translated into: prompts, and how to go on from them, checked, defaults chosen."""

from dataclasses import dataclass

from gpuworker.wire.messages import Grammar, Sampling


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message as the template sees it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """Exactly one of the three."""

    messages: tuple[Message, ...] | None = None
    text: str | None = None
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """What the client calls the parameters that only later turn out to be wrong."""

    prompt: str = "prompt"
    max_tokens: str = "max_tokens"
    grammar: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Choice c of prompt p is choice `p * n + c` of the answer."""

    model: str  # "" where the dialect names none: the default model
    prompts: tuple[Prompt, ...]
    stream: bool
    sampling: Sampling
    max_tokens: int | None = None  # 0 only with `echo`
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None
    ignore_eos: bool = False
    n: int = 1
    echo: bool = False
    klass: str = "interactive"  # interactive | batch
    truncate_prompt_tokens: int | None = None  # keep this many at most, of the prompt's end
    cache_salt: str = ""
    resumable: bool = False  # the body asked for it
    names: Names = Names()
