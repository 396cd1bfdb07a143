"""One task in a process of its own, which a test may stop: prints its rows as JSON."""

from __future__ import annotations

import json
import pickle
import sys

import pytest
from pyspark.sql import types as t

from .sparkless import Worker


def main() -> None:
    config, keys, options = pickle.load(sys.stdin.buffer)  # the test itself has written it
    with pytest.MonkeyPatch.context() as patch:
        worker = Worker(patch)
        rows = worker.outcomes(config, t.IntegerType(), keys, **options)
        worker.thread.stop()
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
