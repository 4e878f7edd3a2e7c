"""Grammars that a row's output must match: compiled on threads, asked for a mask before every token.

The library is llguidance. It releases the interpreter lock while it compiles, so a thread is enough: beside
the worst grammars allowed another thread was never kept waiting longer than 31 ms. No torch here.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from gpuworker.engine.grammar_source import LIMITS, GrammarError, grammar_source, readable, size_problem
from gpuworker.engine.plan import SequenceKey
from gpuworker.wire.messages import Grammar, RowKey

__all__ = ["GrammarCompiler", "GrammarError", "GrammarState"]

THREADS = 2
TIMEOUT_S = 5.0
MAX_WAITING = 64  # compilations not yet begun
CACHED_GRAMMARS = 64


class _Vocabulary:
    """The tokenizer as the library sees it, and which ids of the model may ever be sampled."""

    def __init__(self, tokenizer_path: Path, vocab_size: int, eos_ids: frozenset[int]) -> None:
        text = tokenizer_path.read_text(encoding="utf-8")
        spelled: dict[str, int] = Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
        known = max(spelled.values()) + 1
        common = min(known, vocab_size)
        ends = sorted(token for token in eos_ids if token < common)
        try:
            self.tokenizer = LLTokenizer(text, n_vocab=max(known, vocab_size), eos_token=ends or None)
        except (ValueError, RuntimeError) as error:
            raise GrammarError(f"no grammar can be followed with this tokenizer: {error}") from error
        self.mask_bytes = (vocab_size + 7) // 8
        self.ids = (1 << common) - 1  # as a mask: neither padding nor beyond the model
        for guessed in set(self.tokenizer.eos_tokens).difference(ends):
            self.ids &= ~(1 << guessed)


class GrammarState:
    """Where one text stands in its grammar. Not thread-safe; copies are independent."""

    def __init__(self, matcher: LLMatcher, vocabulary: _Vocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    @property
    def is_complete(self) -> bool:
        """The text matches and nothing more can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def mask(self) -> bytes:
        """⌈vocabulary / 8⌉ bytes, lowest bit first; a set bit is a token that may come next. End-of-sequence
        ids are among them only where the text may end, and then all of them are.

        Raises GrammarError when the grammar turns out too costly here, or no token of this vocabulary fits.
        """
        mask = int.from_bytes(self._matcher.compute_bitmask(), "little") & self._vocabulary.ids
        self._check()
        if not mask:
            raise GrammarError("no token of the vocabulary can follow")
        return mask.to_bytes(self._vocabulary.mask_bytes, "little")

    def accept(self, token: int) -> None:
        """Raises GrammarError if the mask did not allow the token."""
        if not self._matcher.consume_token(token):
            self._check()
            raise GrammarError(f"token {token} cannot follow")

    def copy(self) -> "GrammarState":
        return GrammarState(self._matcher.deep_copy(), self._vocabulary)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(readable(self._matcher.get_error()))


Key = SequenceKey | RowKey
Compiled = GrammarState | GrammarError


@dataclass(eq=False, slots=True)
class _Compilation:
    grammar: Grammar
    timer: threading.Timer
    waiting: dict[Key, Callable[[], None]] = field(default_factory=dict)
    begun: bool = False
    overdue: bool = False


class GrammarCompiler:
    """`start`, `forget`, `take_ready` and `close` belong to one thread; compiling happens on others.

    Results, errors included, are kept by content. A compilation that takes too long is given up: those who
    wait are told, its thread goes on. While all threads are taken so, grammars not yet known are refused.
    """

    def __init__(
        self,
        tokenizer_path: Path,
        vocab_size: int,
        eos_ids: frozenset[int],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Raises GrammarError when the tokenizer is of a kind that the library does not know."""
        self._vocabulary = _Vocabulary(tokenizer_path, vocab_size, eos_ids)
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        # All below is touched only while `_changed` is held.
        self._cache: OrderedDict[Grammar, Compiled] = OrderedDict()
        self._compilations: dict[Grammar, _Compilation] = {}
        self._queue: deque[_Compilation] = deque()
        self._ready: list[tuple[Key, Compiled]] = []
        self._stuck = 0
        self._closed = False
        self._started = False

    def start(self, key: Key, grammar: Grammar, on_ready: Callable[[], None]) -> None:
        """`on_ready` is called once, on any thread, maybe before this returns; then `take_ready`."""
        with self._changed:
            if problem := size_problem(grammar):
                self._ready.append((key, GrammarError(problem)))
            elif (known := self._cache.get(grammar)) is not None:
                self._cache.move_to_end(grammar)
                self._ready.append((key, _handed_out(known)))
            elif (compilation := self._compilations.get(grammar)) is not None:
                compilation.waiting[key] = on_ready
                return
            elif self._stuck == THREADS or len(self._queue) >= MAX_WAITING:
                self._ready.append(
                    (key, GrammarError("too many grammars are being compiled; try again later"))
                )
            else:
                self._enqueue(grammar).waiting[key] = on_ready
                return
        on_ready()

    def take_ready(self) -> list[tuple[Key, Compiled]]:
        with self._changed:
            ready, self._ready = self._ready, []
        return ready

    def forget(self, key: Key) -> None:
        """Nothing about this key will be handed out any more. Unknown keys are ignored."""
        with self._changed:
            for compilation in self._compilations.values():
                compilation.waiting.pop(key, None)
            self._ready = [entry for entry in self._ready if entry[0] != key]

    def close(self) -> None:
        """Ends the threads that are not compiling; the others end when their compilation does."""
        with self._changed:
            self._closed = True
            for compilation in self._compilations.values():
                compilation.timer.cancel()
            self._compilations.clear()
            self._queue.clear()
            self._changed.notify_all()

    def _enqueue(self, grammar: Grammar) -> _Compilation:
        if not self._started:
            self._started = True
            for number in range(THREADS):
                threading.Thread(target=self._work, name=f"grammar-{number}", daemon=True).start()
        timer = threading.Timer(self._timeout_s, self._give_up, [grammar])
        timer.daemon = True
        compilation = _Compilation(grammar, timer)
        self._compilations[grammar] = compilation
        self._queue.append(compilation)
        self._changed.notify()
        timer.start()
        return compilation

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                compilation = self._queue.popleft()
                compilation.begun = True
            result = _compile(compilation.grammar, self._vocabulary)
            with self._changed:
                self._stuck -= compilation.overdue
                told = self._finish(compilation, result)
            for on_ready in told:
                on_ready()

    def _give_up(self, grammar: Grammar) -> None:
        with self._changed:
            compilation = self._compilations.get(grammar)
            if compilation is None:
                return
            compilation.overdue = True
            if compilation.begun:
                self._stuck += 1
            else:
                self._queue.remove(compilation)
            error = GrammarError(f"compiling the grammar took longer than {self._timeout_s} s")
            told = self._finish(compilation, error)
        for on_ready in told:
            on_ready()

    def _finish(self, compilation: _Compilation, result: Compiled) -> list[Callable[[], None]]:
        """Whom to tell, once the lock is released. Nobody when it was given up before."""
        if self._closed:
            return []
        compilation.timer.cancel()
        if self._compilations.get(compilation.grammar) is compilation:
            del self._compilations[compilation.grammar]
        if compilation.begun:  # a grammar that was never tried says nothing about itself
            self._cache[compilation.grammar] = result
            self._cache.move_to_end(compilation.grammar)
        while len(self._cache) > CACHED_GRAMMARS:
            self._cache.popitem(last=False)
        waiting, compilation.waiting = compilation.waiting, {}
        self._ready += [(key, _handed_out(result)) for key in waiting]
        return list(waiting.values())


def _handed_out(known: Compiled) -> Compiled:
    return known.copy() if isinstance(known, GrammarState) else known


def _compile(grammar: Grammar, vocabulary: _Vocabulary) -> Compiled:
    """Also makes the first mask, so that a grammar nothing can match is refused and its copies start warm."""
    try:
        matcher = LLMatcher(vocabulary.tokenizer, grammar_source(grammar), log_level=0, limits=LIMITS)
        if matcher.is_error():
            return GrammarError(readable(matcher.get_error()))
        state = GrammarState(matcher, vocabulary)
        state.mask()
    except GrammarError as error:
        return error
    except BaseException as error:  # a panic inside the library is not an Exception; the thread must live
        return GrammarError(f"the grammar cannot be used: {readable(str(error))}")
    return state
