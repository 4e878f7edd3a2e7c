"""The converted model is the GGUF model: the same numbers, the same answers."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from gpuworker.manifest import manifest_build
from modelsvc.gguf_convert import bfloat16_bytes, gguf_convert, gguf_open
from modelsvc.import_errors import ModelRejected
from modelsvc.importer import model_import_gguf
from tests.modelsvc.conftest import DemoModel
from tests.modelsvc.tiny_models import tiny_gguf

HF: Any = transformers  # untyped
CONFIG_KEYS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "hidden_act", "max_position_embeddings", "rope_theta", "vocab_size"),
    *("tie_word_embeddings", "attention_bias", "mlp_bias"),
)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, 2))
    HF.utils.logging.disable_progress_bar()
    yield
    torch.set_num_threads(before)


def gguf_by_transformers(path: Path) -> Any:
    """transformers' own reading of the file; `from_pretrained` would ask for one more package to do it."""
    with HF.modeling_utils.no_init_weights():
        model = HF.LlamaForCausalLM(HF.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)).eval()
    with warnings.catch_warnings():
        # transformers wraps a read-only array of the file, which it only reads.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        load: Any = load_gguf_checkpoint  # untyped
        loaded = load(str(path), return_tensors=True, model_to_load=model)
    tensors = loaded["tensors"]
    model.load_state_dict({"lm_head.weight": tensors["model.embed_tokens.weight"], **tensors})
    return model


@pytest.mark.model
@pytest.mark.slow
def test_demo_weights_and_answers_equal_those_transformers_reads_from_the_gguf_file(demo: DemoModel) -> None:
    theirs = gguf_by_transformers(demo.gguf)
    ours = HF.AutoModelForCausalLM.from_pretrained(demo.folder, dtype=torch.float32)

    stored = load_file(demo.folder / "model.safetensors")
    expected = {name: tensor for name, tensor in theirs.state_dict().items() if name != "lm_head.weight"}
    assert stored.keys() == expected.keys()
    for name, tensor in expected.items():
        assert stored[name].dtype == torch.bfloat16
        assert torch.equal(stored[name], tensor.to(torch.bfloat16)), name

    ids = torch.tensor([[1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173]])
    with torch.inference_mode():
        ours_logits, theirs_logits = ours(ids).logits, theirs(ids).logits
    assert torch.equal(ours_logits.argmax(-1), theirs_logits.argmax(-1))
    # bfloat16 keeps 8 bits of each weight.
    assert (ours_logits - theirs_logits).abs().max() < 0.5


@pytest.mark.model
def test_demo_config_equals_the_one_transformers_reads_from_the_gguf_file(demo: DemoModel) -> None:
    theirs = HF.AutoConfig.from_pretrained(demo.gguf.parent, gguf_file=demo.gguf.name)
    ours = HF.AutoConfig.from_pretrained(demo.folder)
    for key in CONFIG_KEYS:
        assert getattr(ours, key) == getattr(theirs, key), key
    assert ours.rms_norm_eps == pytest.approx(theirs.rms_norm_eps, rel=1e-6)
    assert ours.rms_norm_eps == 1e-5
    assert json.loads((demo.folder / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    assert demo.manifest.max_context_tokens == 8192


@pytest.mark.parametrize(
    "quantization", [GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1]
)
def test_each_quantization_becomes_the_rounded_weights(
    tmp_path: Path, quantization: GGMLQuantizationType
) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", quantization=quantization)
    manifest = model_import_gguf(path, tmp_path / "weights", progress=False)
    stored = load_file(tmp_path / "weights" / manifest.digest / "model.safetensors")
    expected = gguf_by_transformers(path).state_dict()
    for name, tensor in stored.items():
        assert torch.equal(tensor, expected[name].to(torch.bfloat16)), name


@given(
    high=st.lists(st.integers(0, 0xFFFF).filter(lambda bits: bits & 0x7F80 != 0x7F80), min_size=1),
    low=st.sampled_from([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]),
)
def test_rounding_to_bfloat16_is_that_of_torch(high: list[int], low: int) -> None:
    """Every finite number next to, and exactly on, the middle between two bfloat16 values."""
    values = np.array([bits << 16 | low for bits in high], dtype=np.uint32).view(np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    assert bfloat16_bytes(values) == expected.tobytes()


@pytest.mark.model
def test_kept_conversion_is_what_the_converter_makes_now(demo: DemoModel, tmp_path: Path) -> None:
    """If this fails, the converter changed: raise CONVERTER_VERSION, or stores keep the old conversion."""
    gguf_convert(gguf_open(demo.gguf), tmp_path, lambda done_bytes: None)
    assert manifest_build(tmp_path).digest == demo.manifest.digest


def test_same_file_converts_to_the_same_digest(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    digests = {model_import_gguf(path, tmp_path / store, progress=False).digest for store in ("a", "b")}
    other = model_import_gguf(tiny_gguf(tmp_path / "other.gguf", seed=1), tmp_path / "a", progress=False)
    assert len(digests) == 1
    assert other.digest not in digests


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "qwen2"}, "not a llama"),
        ({"pre": "llama-bpe"}, "pre-tokenizer 'llama-bpe' is not known"),
        ({"quantization": GGMLQuantizationType.Q5_0}, "is Q5_0"),
    ],
)
def test_what_would_come_out_wrong_is_refused(tmp_path: Path, change: dict[str, str], message: str) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", **change)  # type: ignore[arg-type]
    with pytest.raises(ModelRejected, match=message):
        model_import_gguf(path, tmp_path / "weights", progress=False)
    assert [p for p in (tmp_path / "weights").iterdir() if p.is_dir()] == []


@pytest.mark.parametrize("kept_bytes", [0, 3, 20, 500, 20_000])
def test_truncated_gguf_is_refused_in_one_line(tmp_path: Path, kept_bytes: int) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(ModelRejected) as caught:
        model_import_gguf(path, tmp_path / "weights", progress=False)
    assert "\n" not in str(caught.value)
