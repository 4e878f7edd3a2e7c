"""A weight store with one tiny byte-level model: real tokenizer, chat template, manifest; no weights."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from gpuworker.manifest import manifest_build, manifest_write

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONTEXT_TOKENS = 512
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tokenizer_make() -> Tokenizer:
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet, "he", "ll"])}
    tokenizer = Tokenizer(BPE(vocabulary, [("h", "e"), ("l", "l")]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return tokenizer


def store_make(
    store: Path, *, template: str = TEMPLATE, tokenizer_edit: Callable[[dict[str, Any]], None] | None = None
) -> str:
    """The digest of the model, whose folder lies in `store` under that name."""
    folder = store / "building"
    folder.mkdir(parents=True)
    document = json.loads(tokenizer_make().to_str())
    if tokenizer_edit is not None:
        tokenizer_edit(document)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    config = {
        "model_type": "llama",
        "max_position_embeddings": CONTEXT_TOKENS,
        "vocab_size": tokenizer_make().get_vocab_size(),
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (folder / "chat_template.jinja").write_text(template)
    manifest = manifest_build(folder)
    manifest_write(folder, manifest)
    shutil.move(folder, store / manifest.digest)
    return manifest.digest
