"""llama.cpp's own server: `python -m tests.backends.llama_server MODEL.gguf NAME PORT`, until it is killed.

The package xllamacpp is that server as a library, compiled for any x86-64.
"""

import sys
import threading
from pathlib import Path

import xllamacpp  # type: ignore[import-untyped]

CONTEXT_TOKENS = 4096  # of all slots together
SLOTS = 2


def serve(model: Path, name: str, port: int) -> None:
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias, params.port = str(model), {name}, port
    params.n_ctx, params.n_parallel, params.kv_unified = CONTEXT_TOKENS, SLOTS, True
    params.cpuparams.n_threads = SLOTS
    params.endpoint_slots, params.warmup = True, False
    server = xllamacpp.Server(params)
    print(f"{server.listening_address} serves {name}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
