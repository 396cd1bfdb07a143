"""Two tasks in a process of their own, which a test may stop; it prints their rows as JSON."""

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
        rows, _ = worker.outcomes_of_two(config, t.IntegerType(), keys, **options)
        worker.thread.stop()
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
