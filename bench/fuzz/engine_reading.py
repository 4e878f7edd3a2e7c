"""What a request's text should be, read plainly from all its ids at once."""

import json
import re
from os.path import commonprefix

from tokenizers import Tokenizer

from gpuworker.engine.detokenizer import Detokenizer, IncrementalDecoder
from gpuworker.wire.messages import Grammar, Submit


def expected_text(
    tokenizer: Tokenizer,
    eos_ids: frozenset[int],
    prompt: list[int],
    ids: list[int],
    submit: Submit,
    *,
    is_cut: bool = False,
) -> tuple[str, str]:
    """A plain reading: all ids at once, then the first stop string that is completed. What comes before the
    text that is searched for stop strings, and that text as far as it is shown."""
    ends = eos_ids.union(submit.stop_ids)
    visible = [token for token in ids if token not in ends]
    before, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + visible)
    if submit.echo:
        searched = len(Detokenizer(tokenizer, prompt, [], echo=True).prompt_text)
        before, text = whole[:searched], whole[searched:]
    else:
        before, text = "", whole[len(commonprefix([before, whole])) :]  # noqa: RUF071  texts, not paths
    if is_cut:  # what is left of a character is not shown
        text = text.rstrip("\ufffd")
    # What was out before the row might stop is not searched either.
    early = [token for token in ids[: max(0, submit.sampling.min_tokens - 1)] if token not in ends]
    decoder = IncrementalDecoder(tokenizer, prompt, shows_prompt_end=submit.echo)
    out = len("".join(map(decoder.push, early)))
    stops = [stop for stop in submit.stop if stop and stop in text[out:]]
    found = [(text.index(stop, out) + len(stop), -len(stop)) for stop in stops]
    if not found:
        return before, text
    end, size = min(found)
    return before, text[: end + size]


def fits(grammar: Grammar, text: str) -> bool:
    if grammar.kind == "choice":
        return text in json.loads(grammar.text)
    if grammar.kind == "regex":
        return re.fullmatch(grammar.text, text) is not None
    value = json.loads(text)
    if grammar.kind == "json_object":
        return isinstance(value, dict)
    return isinstance(value, str | dict)
