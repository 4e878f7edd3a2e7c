"""The native backend as a process: a small random Llama behind the same sockets."""

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from gpuworker.families.config import config_parse
from gpuworker.families.shapes import weight_shapes
from gpuworker.manifest import manifest_build, manifest_write
from gpuworker.wire.messages import Sampling
from tests.worker.conftest import Stage
from tests.worker.fleet import Fleet
from tests.worker.support import weights_make

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


def model_add(folder: Path, **changed: object) -> str:
    """Random weights, but the same ones each time. Returns the folder's digest."""
    generator = torch.Generator().manual_seed(1)
    shapes = weight_shapes(config_parse(CONFIG | changed))
    tensors = {name: torch.randn(shape, generator=generator) * 0.1 for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | changed))
    manifest = manifest_build(folder)
    manifest_write(folder, manifest)
    return manifest.digest


def weights_add(stage: Stage) -> None:
    stage.digest = model_add(stage.worker.weights)


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
    # And what it cost the machine was told, and is no longer than it took
    told = [work for report in stage.dispatcher.reports for work in report.work]
    lived_s = stage.dispatcher.report_times[-1] - stage.dispatcher.report_times[0]
    assert 0 < max(work.total_us for work in told) <= 1e6 * lived_s
    assert len(stage.dispatcher.reports[-1].cost) == 5


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"num_hidden_layers": 3}, "model.layers.2"),
        ({"vocab_size": 256}, "tokenizer.json"),
        ({"eos_token_id": 300}, "tokenizer.json"),
        ({"max_position_embeddings": 15}, "max_position_embeddings is 15"),
    ],
)
async def test_a_model_it_cannot_run_is_refused_in_one_line(
    stage: Stage, broken: dict[str, object], named: str
) -> None:
    weights_add(stage)
    folder = stage.worker.weights
    (folder / "config.json").write_text(json.dumps(CONFIG | broken))
    manifest_write(folder, manifest_build(folder))
    await stage.worker.start(*NATIVE)
    assert await stage.worker.exit_status() == 2
    (line,) = stage.worker.log
    assert "cannot start" in line
    assert named in line


async def test_a_tokenizer_that_grammars_cannot_follow_is_refused_in_one_line(stage: Stage) -> None:
    weights_add(stage)
    folder = stage.worker.weights
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.save(str(folder / "tokenizer.json"))
    manifest_write(folder, manifest_build(folder))
    await stage.worker.start(*NATIVE)
    assert await stage.worker.exit_status() == 2
    (line,) = stage.worker.log
    assert "tokenizer.json" in line


async def test_more_blocks_than_memory_are_refused_in_one_line(stage: Stage) -> None:
    weights_add(stage)
    await stage.worker.start(*NATIVE, "--kv-blocks", "1000000000000")
    assert await stage.worker.exit_status() == 2
    (line,) = stage.worker.log
    assert "no memory for KV blocks" in line


async def test_a_prompt_computed_by_another_worker_gives_the_same_tokens(folder: Path) -> None:
    weights = folder / "weights"
    weights_make(weights)
    fleet = await Fleet(folder, weights, model_add(weights, max_position_embeddings=2048)).start()
    prompts = {sid: f"{sid} " + "the quick brown fox " * (26 + sid) for sid in range(4)}
    sampling = Sampling(temperature=1.0, top_p=0.95, seed=42)
    try:
        alone = await fleet.worker_start("b", "both", *NATIVE)
        expected = {sid: await fleet.run(sid, text, sampling=sampling) for sid, text in prompts.items()}
        alone.signal(signal.SIGTERM)
        assert await alone.exit_status() == 0
        await fleet.worker_start("decode", "decode", *NATIVE)
        await fleet.worker_start("prefill", "prefill", *NATIVE)
        warm_up_steps = await fleet.steps_of("prefill")
        for sid, text in prompts.items():
            await fleet.submit(10 + sid, text, sampling=sampling)
        for sid in prompts:
            text, end = await fleet.result(10 + sid)
            assert text == expected[sid][0]
            assert end.cached_tokens == 0
        await fleet.until_idle("decode", "prefill")
        assert await fleet.steps_of("prefill") >= warm_up_steps + len(prompts)
    finally:
        await fleet.stop()
