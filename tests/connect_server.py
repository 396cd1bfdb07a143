"""
A Spark Connect server for a client of `test_cluster.py`; it prints its address, and ends with its input.

Its argument is a JSON object: the master, the Python of the executors, and settings of Spark.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from enrichkit import local

given = json.loads(sys.argv[1])
with local.spark(connect=True, master=given["master"], python=given["python"], **given["conf"]) as spark:
    client: Any = spark.client
    sys.stdout.write(f"sc://{client._builder.endpoint}\n")
    sys.stdout.flush()
    sys.stdin.read()
