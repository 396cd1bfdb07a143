"""
A function as a connector: a blocking function, and a class that keeps a client and takes many keys per call.

    +-------+-------+----+
    |user_id|   name|tier|
    +-------+-------+----+
    |     u1|    Ann|gold|
    |     u2|    Bob|NULL|
    |missing|unknown|gold|
    +-------+-------+----+
"""

import json
import urllib.request
import warnings
from collections.abc import Mapping, Sequence
from urllib.error import HTTPError
from urllib.parse import quote

import redis

import enrichkit
from enrichkit import TransientError, default, enrich, local

warnings.filterwarnings("ignore", message=".* is no async function")  # the comment on `name` explains it

with local.redis() as server, local.http() as service, local.spark() as spark:
    service.seed({"u1": {"name": "Ann"}, "u2": {"name": "Bob"}})
    redis.Redis.from_url(server.url).mset({"u1": "gold", "missing": "gold"})
    profiles, tiers = f"{service.url}/users/", server.url  # the functions are pickled with these plain values

    # The function is not async, so each worker process runs it in `capacity` threads. A deadline cannot end a thread.
    @enrichkit.connector("name", returns="string", capacity=16)
    def name(user_id: str) -> str | None:
        try:
            with urllib.request.urlopen(profiles + quote(user_id, safe=""), timeout=5) as answer:  # noqa: S310
                return str(json.load(answer)["name"])
        except HTTPError as error:
            if error.code == 404:
                return None  # the service does not hold the key
            raise TransientError(f"the service answered {error.code}") from error  # the engine retries

    # One object of the class serves a worker process. With a batch size, `fetch` takes a list and returns a mapping.
    @enrichkit.connector("tier", returns="string", batch_size=500)
    class Tier:
        async def open(self) -> None:
            self.client = redis.asyncio.from_url(tiers, decode_responses=True)

        async def fetch(self, user_ids: Sequence[str]) -> Mapping[str, str]:
            values = await self.client.mget(user_ids)
            return {user: tier for user, tier in zip(user_ids, values, strict=True) if tier is not None}

        async def close(self) -> None:
            await self.client.aclose()

    assert name("u1") == "Ann"  # the decorator leaves the function as it was
    users = spark.createDataFrame([("u1",), ("u2",), ("missing",)], "user_id string")
    users.select("user_id", enrich("name", "user_id", on_missing=default("unknown")), enrich("tier", "user_id")).show()
