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
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gateway.chat_template import ChatTemplate
from gateway.errors import ApiError
from gateway.validation import Generation, Message
from gpuworker.manifest import Manifest, WeightsMismatch, manifest_load, sha256_file

_THREAD_CHARACTERS = 4096  # about 2 ms of tokenising; longer texts do not hold the event loop
_MESSAGE_CHARACTERS = 32  # what rendering a message costs, however little it says
_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenise")  # of all models together
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_TEMPLATE_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


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
        self._vocabulary_size = max(vocabulary.values()) + 1
        self._max_token_bytes = _max_token_bytes(document, vocabulary)
        for token in control:  # the tokenizer matches an added token in any text unless it is special
            token["special"] = True
        self._literal = Tokenizer.from_str(json.dumps(document))  # the switch belongs to the object
        self._literal.encode_special_tokens = True
        config = _json_read(folder / "tokenizer_config.json")
        tokens = {name: text for name in _TEMPLATE_TOKENS if (text := _token_text(config.get(name)))}
        template = folder / "chat_template.jinja"
        self._template = ChatTemplate(template.read_text(), tokens) if template.exists() else None
        self.stop_ids = _eos_ids(_json_read(folder / "generation_config.json"), manifest.config)

    async def encode(self, generation: Generation, max_tokens: int) -> list[int]:
        """Ids of the prompt, at most `max_tokens`. Raises ApiError."""
        if generation.ids is not None:
            if len(generation.ids) > max_tokens:
                raise context_length_error(max_tokens, len(generation.ids), param="prompt")
            return self._ids_check(generation.ids)
        if generation.messages is not None:
            if len(generation.messages) > max_tokens:  # each takes a token at least
                raise context_length_error(max_tokens, None, param="messages")
            size = sum(len(message.content) + _MESSAGE_CHARACTERS for message in generation.messages)
        else:
            size = len(generation.text or "")
        if size > _THREAD_CHARACTERS:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(_THREADS, self._encode, generation, max_tokens)
        return self._encode(generation, max_tokens)

    def _encode(self, generation: Generation, max_tokens: int) -> list[int]:
        if generation.messages is None:
            text = generation.text or ""
            tokenizer = self._literal if self._control.search(text) else self._tokenizer
            return self._ids(tokenizer, text, max_tokens, param="prompt")
        if self._template is None:
            raise ApiError("invalid_value", "this model has no chat template", param="model")
        if any(self._control.search(message.content) for message in generation.messages):
            return self._encode_pieces(self._template, generation.messages, max_tokens)
        return self._ids(
            self._tokenizer, self._template.render(generation.messages), max_tokens, param="messages"
        )

    def _encode_pieces(
        self, template: ChatTemplate, messages: Sequence[Message], max_tokens: int
    ) -> list[int]:
        """For messages that spell control tokens."""
        cut, marker, spellings = self._spellings_cut(messages)
        ids: list[int] = []
        for index, piece in enumerate(marker.split(template.render(cut))):
            if index % 2:  # the number of a spelling, between two pieces of text
                ids += self._ids(self._literal, spellings[int(piece)], max_tokens, param="messages")
            elif piece:
                ids += self._ids(self._tokenizer, piece, max_tokens, param="messages")
            if len(ids) > max_tokens:
                raise context_length_error(max_tokens, None, param="messages")
        return ids

    def _ids(self, tokenizer: Tokenizer, text: str, max_tokens: int, *, param: str) -> list[int]:
        """Raises ApiError where they are too many, without tokenising where that is certain before."""
        if self._max_token_bytes and len(text.encode()) > max_tokens * self._max_token_bytes:
            raise context_length_error(max_tokens, None, param=param)
        is_whole = param == "prompt"  # a chat template writes the special tokens itself
        if len(text) <= _THREAD_CHARACTERS:
            encoding = tokenizer.encode(text, add_special_tokens=is_whole)
        else:  # unlike `encode` it releases the interpreter lock
            (encoding,) = tokenizer.encode_batch([text], add_special_tokens=is_whole)
        if len(encoding) > max_tokens:
            raise context_length_error(max_tokens, len(encoding), param=param)
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

    def _ids_check(self, ids: Sequence[int]) -> list[int]:
        if min(ids) < 0 or max(ids) >= self._vocabulary_size:
            rule = f"token ids must be between 0 and {self._vocabulary_size - 1}"
            raise ApiError("invalid_value", rule, param="prompt")
        return list(ids)


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
        return await asyncio.shield(self._start(digest))

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
