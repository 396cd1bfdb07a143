"""
The driver program of `test_doctor.py`: looks at the executors of a local cluster, and prints what was found.

A script of its own, as a job is: one process has one Spark.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from enrichkit_http import HttpConfig
from enrichkit_redis import RedisConfig

from enrichkit import Secret, doctor, local, register


def main() -> None:
    """Look with the sources and settings of the first argument."""
    asked = json.loads(sys.argv[1])
    if asked["sources"]:
        register("open", RedisConfig(url=asked["open"]))
        register("closed", RedisConfig(url=asked["closed"], password=Secret.env("CLOSED_PASSWORD")))
        register("tokens", RedisConfig(url=asked["closed"], password=Secret.env("DOCTOR_TOKEN")))
        register("private", RedisConfig(url="rediss://127.0.0.1:1/0", tls_ca="ca.pem"))
        register("service", HttpConfig(url=asked["service"]))
    # An executor has a variable of the cluster, not of the driver.
    secrets = {f"spark.executorEnv.{name}": value for name, value in asked["secrets"].items()}
    with local.spark(master=asked["master"], **asked["conf"], **secrets) as spark:
        found = doctor(spark, *asked["sources"], **asked["options"])
        sys.stdout.write(json.dumps({**asdict(found), "text": str(found)}))


if __name__ == "__main__":
    main()
