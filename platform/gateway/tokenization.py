"""Prompts to token ids, per model version. What users write never becomes a control token.

A text without any special token's spelling is tokenised whole, exactly as in training. Otherwise each such
spelling is cut out and tokenised as ordinary text.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gateway.chat_template import ChatTemplate
from gateway.errors import ApiError
from gateway.validation import Generation, Message
from gpuworker.manifest import Manifest, WeightsMismatch, manifest_load, sha256_file

_THREAD_CHARACTERS = 4096  # about 2 ms of tokenising; longer texts do not hold the event loop
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_TEMPLATE_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ModelTokenizer:
    """Tokenizer, chat template and end-of-sequence ids of one digest. Raises WeightsMismatch, OSError."""

    def __init__(self, folder: Path) -> None:
        manifest = manifest_load(folder)
        _small_files_verify(folder, manifest)
        self._json = (folder / "tokenizer.json").read_text()
        self._tokenizer = Tokenizer.from_str(self._json)
        self._literal: Tokenizer | None = None
        added = self._tokenizer.get_added_tokens_decoder()
        special = sorted((token.content for token in added.values() if token.special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self._vocabulary_size = max(vocabulary.values()) + 1
        self._longest_token = max(map(len, vocabulary))
        config = _json_read(folder / "tokenizer_config.json")
        tokens = {name: text for name in _TEMPLATE_TOKENS if (text := _token_text(config.get(name)))}
        template = folder / "chat_template.jinja"
        self._template = ChatTemplate(template.read_text(), tokens) if template.exists() else None
        self.stop_ids = _eos_ids(_json_read(folder / "generation_config.json"), manifest.config)

    async def encode(self, generation: Generation, max_tokens: int) -> list[int]:
        """Ids of the prompt; may be longer than `max_tokens`. Raises ApiError."""
        if generation.ids is not None:
            return self._ids_check(generation.ids)
        if generation.messages is not None:
            size = sum(len(message.content) for message in generation.messages)
        else:
            size = len(generation.text or "")
        if size > max_tokens * self._longest_token:  # no need to tokenise it to know
            raise context_length_error(max_tokens, None, param="messages" if generation.is_chat else "prompt")
        if size > _THREAD_CHARACTERS:
            return await asyncio.to_thread(self._encode, generation)
        return self._encode(generation)

    def _encode(self, generation: Generation) -> list[int]:
        if generation.messages is None:
            return self._encode_text(generation.text or "")
        if self._template is None:
            raise ApiError("invalid_value", "this model has no chat template", param="model")
        if any(self._special.search(message.content) for message in generation.messages):
            return self._encode_pieces(self._template, generation.messages)
        return _ids(self._tokenizer, self._template.render(generation.messages))

    def _encode_text(self, text: str) -> list[int]:
        tokenizer = self._literal_tokenizer() if self._special.search(text) else self._tokenizer
        ids: list[int] = tokenizer.encode(text, add_special_tokens=True).ids
        return ids

    def _encode_pieces(self, template: ChatTemplate, messages: Sequence[Message]) -> list[int]:
        """For messages that spell special tokens."""
        cut, marker, spellings = self._spellings_cut(messages)
        ids: list[int] = []
        for index, piece in enumerate(marker.split(template.render(cut))):
            if index % 2:  # the number of a spelling, between two pieces of text
                ids += _ids(self._literal_tokenizer(), spellings[int(piece)])
            elif piece:
                ids += _ids(self._tokenizer, piece)
        return ids

    def _spellings_cut(
        self, messages: Sequence[Message]
    ) -> tuple[list[Message], "re.Pattern[str]", list[str]]:
        """The messages with a marker, unguessable, where each special token was spelled out."""
        nonce = secrets.token_hex(16)
        spellings: list[str] = []

        def replace(match: "re.Match[str]") -> str:
            spellings.append(match.group())
            return f"\ue000{nonce}.{len(spellings) - 1}\ue001"

        cut = [Message(message.role, self._special.sub(replace, message.content)) for message in messages]
        return cut, re.compile(f"\ue000{nonce}\\.([0-9]+)\ue001"), spellings

    def _literal_tokenizer(self) -> Tokenizer:
        """A second tokenizer: the switch belongs to the object, and encoding threads share the first."""
        if self._literal is None:
            literal = Tokenizer.from_str(self._json)
            literal.encode_special_tokens = True
            self._literal = literal
        return self._literal

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


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


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
