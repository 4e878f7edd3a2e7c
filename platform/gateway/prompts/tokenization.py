"""Prompts to token ids, per model version. What users write never becomes a control token.

A text without any added token's spelling is tokenised whole, exactly as in training. Otherwise each such
spelling is cut out and tokenised as ordinary text. Long prompts are tokenised beside the event loop, in
threads that release the interpreter lock.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gateway.errors import ApiError
from gateway.generation import Message, Prompt
from gateway.prompts.chat_template import ChatTemplate
from gpuworker.manifest import Manifest, WeightsMismatch, manifest_load, sha256_file

_THREAD_CHARACTERS = 4096  # about 2 ms of tokenising; longer texts do not hold the event loop
_MESSAGE_CHARACTERS = 32  # what rendering a message costs, however little it says
TOKENISING_THREADS = 2
_THREADS = ThreadPoolExecutor(
    max_workers=TOKENISING_THREADS, thread_name_prefix="tokenise"
)  # of all models together
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_TEMPLATE_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


def _byte_characters() -> dict[str, int]:
    """The character by which byte-level vocabularies write each byte (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_BYTE_OF = _byte_characters()


class ModelTokenizer:
    """Tokenizer, chat template and end-of-sequence ids of one digest. Raises WeightsMismatch, OSError."""

    def __init__(self, folder: Path) -> None:
        manifest = manifest_load(folder)
        _small_files_verify(folder, manifest)
        document = json.loads((folder / "tokenizer.json").read_bytes())
        self._tokenizer = Tokenizer.from_str(json.dumps(document))
        control = [token for token in document.get("added_tokens") or () if token["content"].strip()]
        spellings = sorted((token["content"] for token in control), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, spellings)) or r"(?!)")
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary_size = max(vocabulary.values()) + 1
        self._max_token_bytes = _max_token_bytes(document, vocabulary)
        added = document.get("added_tokens") or ()
        self._added_ids = frozenset(token["id"] for token in added)
        self._special_ids = frozenset(token["id"] for token in added if token.get("special"))
        self._is_byte_level = (document.get("decoder") or {}).get("type") == "ByteLevel"
        self._token_bytes: dict[int, bytes] = {}  # of those that were asked for: no more than the vocabulary
        for token in control:  # the tokenizer matches an added token in any text unless it is special
            token["special"] = True
        self._literal = Tokenizer.from_str(json.dumps(document))  # the switch belongs to the object
        self._literal.encode_special_tokens = True
        config = _json_read(folder / "tokenizer_config.json")
        tokens = {name: text for name in _TEMPLATE_TOKENS if (text := _token_text(config.get(name)))}
        template = folder / "chat_template.jinja"
        self._template = ChatTemplate(template.read_text(), tokens) if template.exists() else None
        self.stop_ids = _eos_ids(_json_read(folder / "generation_config.json"), manifest.config)

    def token_bytes(self, token: int) -> bytes:
        """Its text alone, which may end inside a character; empty for an id that the vocabulary lacks."""
        known = self._token_bytes.get(token)
        if known is None:
            known = self._token_bytes[token] = self._vocabulary_bytes(token)
        return known

    def is_special(self, token: int) -> bool:
        return token in self._special_ids

    async def encode(
        self, prompt: Prompt, max_tokens: int, *, param: str = "prompt", keep: int | None = None
    ) -> list[int]:
        """Of one, as `encode_all`."""
        (ids,) = await self.encode_all((prompt,), max_tokens, param=param, keep=keep)
        return ids

    async def encode_all(
        self, prompts: Sequence[Prompt], max_tokens: int, *, param: str = "prompt", keep: int | None = None
    ) -> list[list[int]]:
        """Ids of each prompt, at most `max_tokens`; of a longer one the last `keep`, if that is wanted.

        Raises ApiError about `param`.
        """
        asks = [_Ask(prompt, param, max_tokens, keep) for prompt in prompts]
        if sum(ask.characters() for ask in asks) > _THREAD_CHARACTERS:  # together, however short each is
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(_THREADS, self._encode_all, asks)
        return self._encode_all(asks)

    def _encode_all(self, asks: "Sequence[_Ask]") -> list[list[int]]:
        return [self._encode(ask) for ask in asks]

    def _encode(self, ask: "_Ask") -> list[int]:
        prompt = ask.prompt
        if prompt.ids is not None:
            return ask.cut(list(self._ids_check(prompt.ids, ask.param)))
        if prompt.messages is None:
            text = prompt.text or ""
            tokenizer = self._literal if self._control.search(text) else self._tokenizer
            return ask.cut(self._ids(tokenizer, text, ask, is_whole=True))
        if self._template is None:
            raise ApiError("invalid_value", "this model has no chat template", param="model")
        if any(self._control.search(message.content) for message in prompt.messages):
            return ask.cut(self._encode_pieces(self._template, prompt.messages, ask))
        return ask.cut(self._ids(self._tokenizer, self._template.render(prompt.messages), ask))

    def _encode_pieces(self, template: ChatTemplate, messages: Sequence[Message], ask: "_Ask") -> list[int]:
        """For messages that spell control tokens."""
        cut, marker, spellings = self._spellings_cut(messages)
        ids: list[int] = []
        for index, piece in enumerate(marker.split(template.render(cut))):
            if index % 2:  # the number of a spelling, between two pieces of text
                ids += self._ids(self._literal, spellings[int(piece)], ask)
            elif piece:
                ids += self._ids(self._tokenizer, piece, ask)
            if len(ids) > ask.max_tokens and not ask.truncates:
                raise context_length_error(ask.max_tokens, None, param=ask.param)
        return ids

    def _ids(self, tokenizer: Tokenizer, text: str, ask: "_Ask", *, is_whole: bool = False) -> list[int]:
        """Raises ApiError where they are too many, without tokenising where that is certain before.

        `is_whole`: the tokenizer adds its special tokens; a chat template writes them itself.
        """
        bytes_bound = ask.max_tokens * self._max_token_bytes
        if bytes_bound and not ask.truncates and len(text.encode()) > bytes_bound:
            raise context_length_error(ask.max_tokens, None, param=ask.param)
        # Unlike `encode` it keeps no offsets, which are half of the work, and releases the interpreter lock.
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=is_whole)
        ids: list[int] = encoding.ids
        return ids

    def _spellings_cut(
        self, messages: Sequence[Message]
    ) -> tuple[list[Message], "re.Pattern[str]", list[str]]:
        """The messages with a marker, unguessable, where each control token was spelled out."""
        nonce = secrets.token_hex(16)
        spellings: list[str] = []

        def replace(match: "re.Match[str]") -> str:
            spellings.append(match.group())
            return f"\ue000{nonce}.{len(spellings) - 1}\ue001"

        cut = [Message(message.role, self._control.sub(replace, message.content)) for message in messages]
        return cut, re.compile(f"\ue000{nonce}\\.([0-9]+)\ue001"), spellings

    def _ids_check(self, ids: Sequence[int], param: str) -> Sequence[int]:
        if ids and (min(ids) < 0 or max(ids) >= self.vocabulary_size):
            rule = f"token ids must be between 0 and {self.vocabulary_size - 1}"
            raise ApiError("invalid_value", rule, param=param)
        return ids

    def _vocabulary_bytes(self, token: int) -> bytes:
        """As the model's decoder writes it: byte-level and byte-fallback vocabularies give exact bytes."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if token in self._special_ids or token in self._added_ids:
            return str(piece).encode()
        if self._is_byte_level:
            return bytes(_BYTE_OF[character] for character in piece if character in _BYTE_OF)
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return str(piece).replace("\u2581", " ").encode()


@dataclass(frozen=True, slots=True)
class _Ask:
    """A prompt to be tokenised, and the bounds of its ids."""

    prompt: Prompt
    param: str
    max_tokens: int
    keep: int | None  # of its end, where the client wants it cut

    @property
    def truncates(self) -> bool:
        return self.keep is not None

    def characters(self) -> int:
        """What tokenising it costs. Raises ApiError where the messages alone are too many."""
        prompt = self.prompt
        if prompt.messages is None:
            return len(prompt.text or "")
        if len(prompt.messages) > self.max_tokens and not self.truncates:  # each takes a token at least
            raise context_length_error(self.max_tokens, None, param=self.param)
        return sum(len(message.content) + _MESSAGE_CHARACTERS for message in prompt.messages)

    def cut(self, ids: list[int]) -> list[int]:
        """Raises ApiError where they are too many."""
        if self.keep is not None:
            ids = ids[-self.keep :]
        if len(ids) > self.max_tokens:
            raise context_length_error(self.max_tokens, len(ids), param=self.param)
        return ids


class TokenizerStore:
    """Loads each digest's tokenizer once, in a thread; failures are tried again by the next request."""

    def __init__(self, weights: Path) -> None:
        self._weights = weights
        self._loading: dict[str, asyncio.Task[ModelTokenizer]] = {}

    def preload(self, digests: set[str]) -> None:
        """Start loading these and forget all others."""
        for digest in self._loading.keys() - digests:
            self._loading.pop(digest)
        for digest in digests:
            self._start(digest)

    async def get(self, digest: str) -> ModelTokenizer:
        """Raises WeightsMismatch or OSError when the weight store's files are unusable."""
        task = self._start(digest)
        return task.result() if task.done() else await asyncio.shield(task)

    def _start(self, digest: str) -> "asyncio.Task[ModelTokenizer]":
        task = self._loading.get(digest)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(asyncio.to_thread(_load, self._weights / digest))
            self._loading[digest] = task
        return task


def context_length_error(max_context: int, prompt_tokens: int | None, *, param: str) -> ApiError:
    found = "far more" if prompt_tokens is None else str(prompt_tokens)
    return ApiError(
        "context_length_exceeded",
        f"the prompt has {found} tokens; this model's context is {max_context} tokens, output included",
        param=param,
    )


def _load(folder: Path) -> ModelTokenizer:
    try:
        return ModelTokenizer(folder)
    except (WeightsMismatch, OSError):
        raise
    except Exception as error:  # tokenizers raises bare Exception; a template or config may be anything
        raise WeightsMismatch(f"{folder} holds no usable tokenizer: {error!r}") from error


def _max_token_bytes(document: dict[str, Any], vocabulary: dict[str, int]) -> int:
    """The most bytes of a text that one token can stand for; 0 where nothing bounds it.

    Sure of byte-level models alone: elsewhere normalisers, unknown words and greedy blanks swallow text.
    """
    is_byte_level = (document.get("decoder") or {}).get("type") == "ByteLevel"
    swallows = any(token["lstrip"] or token["rstrip"] for token in document.get("added_tokens") or ())
    if not is_byte_level or document.get("normalizer") or swallows:
        return 0
    added = {
        token["content"] for token in document.get("added_tokens") or ()
    }  # the others: a letter is a byte
    return max(len(token.encode()) if token in added else len(token) for token in vocabulary)


def _small_files_verify(folder: Path, manifest: Manifest) -> None:
    """The worker hashes the weights; the gateway hashes what it reads itself."""
    stated = {file.name: file.sha256 for file in manifest.files}
    for name in _FILES:
        path = folder / name
        if path.exists() != (name in stated) or (name in stated and sha256_file(path) != stated[name]):
            raise WeightsMismatch(f"{path} differs from the manifest")


def _json_read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def _token_text(value: Any) -> str | None:
    """tokenizer_config.json spells a token as a string or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _eos_ids(generation_config: dict[str, Any], model_config: Any) -> list[int]:
    value = generation_config.get("eos_token_id", model_config.get("eos_token_id"))
    if value is None:
        return []
    return [int(item) for item in value] if isinstance(value, list) else [int(value)]
