"""The native backend as a process: a small random Llama behind the same sockets."""

import json

import pytest
import torch
from safetensors.torch import save_file

from gpuworker.engine.config import config_parse
from gpuworker.engine.loader import weight_shapes
from gpuworker.manifest import manifest_build, manifest_write
from tests.worker.conftest import Stage

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 256,
    "tie_word_embeddings": True,
}


def weights_add(stage: Stage) -> None:
    """Random, but the same ones each time."""
    folder = stage.worker.weights
    generator = torch.Generator().manual_seed(1)
    shapes = weight_shapes(config_parse(CONFIG))
    tensors = {name: torch.randn(shape, generator=generator) * 0.1 for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    manifest = manifest_build(folder)
    manifest_write(folder, manifest)
    stage.digest = manifest.digest


NATIVE = ("--backend", "native", "--threads", "2", "--dtype", "float32", "--kv-blocks", "128")


async def test_rows_decode_together_as_they_do_alone(stage: Stage) -> None:
    weights_add(stage)
    await stage.start(*NATIVE)
    gateway = await stage.gateway()
    prompts = {sid: f"prompt number {sid}" for sid in range(8)}
    for sid, prompt in prompts.items():
        stage.run(gateway, sid, prompt, max_tokens=20, ignore_eos=True)
    await gateway.until_ended(*prompts)
    await stage.dispatcher.until_idle()
    for sid, prompt in prompts.items():
        stage.run(gateway, 100 + sid, prompt, max_tokens=20, ignore_eos=True)
        await gateway.until_ended(100 + sid)
        assert gateway.text(100 + sid) == gateway.text(sid)
        assert gateway.ends[sid].output_tokens == 20
    assert len({gateway.text(sid) for sid in prompts}) > 1


@pytest.mark.parametrize(
    "broken", [{"hidden_act": "gelu"}, {"architectures": ["GPT2LMHeadModel"]}, {"num_hidden_layers": 3}]
)
async def test_a_model_it_cannot_run_is_refused_in_one_line(stage: Stage, broken: dict[str, object]) -> None:
    weights_add(stage)
    folder = stage.worker.weights
    (folder / "config.json").write_text(json.dumps(CONFIG | broken))
    manifest_write(folder, manifest_build(folder))
    await stage.worker.start(*NATIVE)
    assert await stage.worker.exit_status() == 2
    (line,) = stage.worker.log
    assert "cannot start" in line
