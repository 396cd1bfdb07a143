"""One task attempt in a process of its own, as a worker of Spark runs it; a test may kill it. Prints its values."""

from __future__ import annotations

import json
import pickle
import sys

import pyarrow as pa

from enrichkit.interface import TaskInfo
from enrichkit.worker import entry, task


def main() -> None:
    payload, keys, attempt = pickle.load(sys.stdin.buffer)  # the test itself has written it
    task._task_info = lambda: TaskInfo(partition=0, attempt=attempt, stage=1)  # what Spark's context would tell
    values = [value for array in entry.arrow_batches(payload, [(pa.array(keys),)]) for value in array.to_pylist()]
    json.dump(values, sys.stdout)


if __name__ == "__main__":
    main()
