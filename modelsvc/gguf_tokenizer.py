"""GGUF tokenizer fields to a Hugging Face tokenizer.json. No Django here.

Byte-level BPE only. The vocabulary and the merges are in the file; how text is split before them is only
named (`tokenizer.ggml.pre`), so each name we know maps to the pre-tokenizer it stands for.
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

from modelsvc.import_errors import ModelRejected

_CONTROL, _USER_DEFINED = 3, 4  # gguf.TokenType


def tokenizer_from_gguf(fields: dict[str, Any]) -> Tokenizer:
    """`fields`: GGUF metadata by key. Raises ModelRejected for a tokenizer we would get wrong."""
    if fields.get("tokenizer.ggml.model") != "gpt2":
        raise ModelRejected(
            f"the GGUF file holds a {fields.get('tokenizer.ggml.model')!r} tokenizer, only byte-level BPE "
            "('gpt2') is converted: import the model's Hugging Face folder instead"
        )
    tokens: Sequence[str] = fields["tokenizer.ggml.tokens"]
    kinds: Sequence[int] = fields["tokenizer.ggml.token_type"]
    unknown = fields.get("tokenizer.ggml.unknown_token_id")
    tokenizer = Tokenizer(
        BPE(
            {token: index for index, token in enumerate(tokens)},
            [_merge(merge) for merge in fields["tokenizer.ggml.merges"]],
            # SmolLM2's alphabet lacks 21 bytes; text holding one must become a token, not vanish.
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
        )
    )
    tokenizer.pre_tokenizer = _pre_tokenizer(fields.get("tokenizer.ggml.pre", "default"))
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(
        [AddedToken(tokens[index], normalized=False) for index, kind in enumerate(kinds) if kind == _CONTROL]
    )
    tokenizer.add_tokens(
        [
            AddedToken(tokens[index], normalized=False)
            for index, kind in enumerate(kinds)
            if kind == _USER_DEFINED
        ]
    )
    return tokenizer


def tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json, for libraries that read it; nothing of ours does."""
    tokens: Sequence[str] = fields["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(fields["llama.context_length"]),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = fields.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            config[f"{name}_token"] = tokens[index]
    return config


def _pre_tokenizer(name: str) -> PreTokenizer:
    words = ByteLevel(add_prefix_space=False, use_regex=True)
    match name:
        case "smollm":  # each digit alone, first: "a  1" holds one token of two spaces
            return PreTokenizers([Digits(individual_digits=True), words])
        case "default" | "gpt-2":
            return words
    raise ModelRejected(
        f"the GGUF file's pre-tokenizer {name!r} is not known: import the model's Hugging Face folder instead"
    )


def _merge(text: str) -> tuple[str, str]:
    left, _, right = text.partition(" ")
    return left, right
