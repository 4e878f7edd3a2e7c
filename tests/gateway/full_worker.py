"""A scripted worker that does whatever a request asks for: choices, log probabilities, an echoed prompt."""

from collections.abc import Callable, Sequence

from gpuworker.wire.messages import (
    ChoiceEnd,
    Frame,
    PromptLogprobs,
    Submit,
    TokenLogprobs,
    unpack_ids,
)
from tests.gateway.peers import Dispatcher, end

WORDS = ("Hello", " wörld", " 你好", " \u2028line", ' "end"\n')
MAX_TOKEN = 256


def answer_everything(dispatcher: Dispatcher) -> Callable[[Submit], None]:
    """A script: up to five words for each choice, then stop; fewer when max_tokens says so, then length."""

    def script(submit: Submit) -> None:
        worker = next(worker for worker in dispatcher.workers if worker.digest == submit.digest)
        dispatcher.place(submit, worker)
        worker.counts.pop(submit.sid)
        prompt = unpack_ids(submit.prompt)
        words = WORDS[: submit.max_tokens]
        reason = "length" if submit.max_tokens <= len(WORDS) else "stop"
        if submit.sampling.prompt_logprobs >= 0 and len(prompt) > 1:
            told = [_logprobs(token, submit.sampling.prompt_logprobs) for token in prompt[1:]]
            worker.send(_frame(submit, [], prompts=[PromptLogprobs(sid=submit.sid, first=1, tokens=told)]))
        for choice in range(submit.n):
            entries = [(choice, 0, 0, "the prompt ")] if submit.echo else []
            entries += [(choice, start, 1, word) for start, word in enumerate(words)]
            worker.send(_frame(submit, entries))
        ends = [
            ChoiceEnd(sid=submit.sid, choice=choice, reason=reason, output_tokens=len(words))
            for choice in range(submit.n)
            if submit.n > 1
        ]
        total = len(words) * submit.n
        last = end(submit.sid, reason, prompt=len(prompt), output=total)
        worker.send(_frame(submit, [], choice_ends=ends, ends=[last]))

    return script


def _frame(submit: Submit, entries: list[tuple[int, int, int, str]], **more: Sequence[object]) -> Frame:
    """`entries`: choice, tokens before it, tokens in it, text."""
    wanted = submit.sampling.logprobs
    logprobs = [
        [_logprobs(start % MAX_TOKEN, wanted) for _ in range(count)] for _, start, count, _ in entries
    ]
    return Frame(
        step=1,
        sids=[submit.sid] * len(entries),
        starts=[start for _, start, _, _ in entries],
        counts=[count for _, _, count, _ in entries],
        texts=[text for _, _, _, text in entries],
        choices=[choice for choice, *_ in entries] if submit.n > 1 else [],
        logprobs=logprobs if wanted >= 0 else [],
        **more,  # type: ignore[arg-type]
    )


def _logprobs(token: int, count: int) -> TokenLogprobs:
    return TokenLogprobs(token, -0.5, [(other % MAX_TOKEN, -0.5 - other) for other in range(count)])
