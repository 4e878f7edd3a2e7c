"""A Hugging Face folder enters the store as data only, or not at all."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from gpuworker.manifest import manifest_verify
from modelsvc.import_errors import ModelRejected
from modelsvc.importer import model_import_folder


def config_change(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def shards_make(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:7], "model-00002-of-00002.safetensors": names[7:]}
    for shard, members in parts.items():
        save_file({name: tensors[name] for name in members}, folder / shard)
    (folder / "model.safetensors").unlink()
    weight_map = {name: shard for shard, members in parts.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def assert_refused(folder: Path, store: Path, message: str) -> None:
    with pytest.raises(ModelRejected, match=message):
        model_import_folder(folder, store, progress=False)
    assert not store.exists() or [path for path in store.iterdir() if path.name != ".lock"] == []


def test_folder_is_stored_whole_and_once(tiny_folder: Path, tmp_path: Path) -> None:
    first = model_import_folder(tiny_folder, tmp_path / "store", progress=False)
    inode = (tmp_path / "store" / first.digest).stat().st_ino
    again = model_import_folder(tiny_folder, tmp_path / "store", progress=False)
    assert first == again == manifest_verify(tmp_path / "store" / first.digest)
    assert (tmp_path / "store" / first.digest).stat().st_ino == inode
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == sorted([".lock", first.digest])


def test_sharded_folder_is_stored(tiny_folder: Path, tmp_path: Path) -> None:
    shards_make(tiny_folder)
    manifest = model_import_folder(tiny_folder, tmp_path / "store", progress=False)
    assert {file.name for file in manifest.files if "safetensors" in file.name} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }


def test_only_data_files_are_copied(tiny_folder: Path, tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "modeling_evil.py", "training_args.pt", "README.md"):
        (tiny_folder / name).write_text("x")
    manifest = model_import_folder(tiny_folder, tmp_path / "store", progress=False)
    assert not {"pytorch_model.bin", "modeling_evil.py", "training_args.pt"} & {
        f.name for f in manifest.files
    }


def test_older_export_gets_its_template_and_its_end_tokens_as_files(
    tiny_folder: Path, tmp_path: Path
) -> None:
    template = (tiny_folder / "chat_template.jinja").read_text()
    (tiny_folder / "chat_template.jinja").unlink()
    (tiny_folder / "generation_config.json").unlink()
    (tiny_folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    manifest = model_import_folder(tiny_folder, tmp_path / "store", progress=False)
    stored = tmp_path / "store" / manifest.digest
    assert (stored / "chat_template.jinja").read_text() == template
    assert json.loads((stored / "generation_config.json").read_text())["eos_token_id"] == 2


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl"])
def test_pickled_weights_are_refused(tiny_folder: Path, tmp_path: Path, name: str) -> None:
    (tiny_folder / "model.safetensors").rename(tiny_folder / name)
    assert_refused(tiny_folder, tmp_path / "store", "only pickled weights")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file_is_refused(tiny_folder: Path, tmp_path: Path, name: str) -> None:
    (tiny_folder / name).unlink()
    assert_refused(tiny_folder, tmp_path / "store", name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}}, "code of its own"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"model_type": "gpt2"}, "gpt2"),
        ({"rope_scaling": {"type": "longrope", "factor": 4}}, "longrope"),
        ({"attention_bias": True}, r"lack .*k_proj\.bias"),
        ({"num_hidden_layers": 3}, r"lack model\.layers\.2"),
        ({"num_hidden_layers": 1}, r"hold model\.layers\.1\..*does not use"),
        ({"hidden_size": 32}, "has shape"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"tie_word_embeddings": False}, "lm_head"),
    ],
)
def test_config_that_does_not_fit_is_refused(
    tiny_folder: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config_change(tiny_folder, **changes)
    assert_refused(tiny_folder, tmp_path / "store", message)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_broken_json_is_refused(tiny_folder: Path, tmp_path: Path, name: str, content: str) -> None:
    (tiny_folder / name).write_text(content)
    assert_refused(tiny_folder, tmp_path / "store", "not")


def test_truncated_weights_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    path = tiny_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert_refused(tiny_folder, tmp_path / "store", "cut short")


@pytest.mark.parametrize(
    "shard", ["../outside.safetensors", "/etc/passwd", "model.bin", "absent.safetensors"]
)
def test_index_that_leads_elsewhere_is_refused(tiny_folder: Path, tmp_path: Path, shard: str) -> None:
    shutil.copyfile(tiny_folder / "model.safetensors", tmp_path / "outside.safetensors")
    shards_make(tiny_folder)
    index = tiny_folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": weight_map | {"model.norm.weight": shard}}))
    assert_refused(tiny_folder, tmp_path / "store", "names a shard|lacks absent")


def test_index_that_swaps_two_shards_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    shards_make(tiny_folder)
    first, second = (tiny_folder / f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    first.rename(tiny_folder / "aside")
    second.rename(first)
    (tiny_folder / "aside").rename(second)
    assert_refused(tiny_folder, tmp_path / "store", "which shard holds which tensor")
