"""All faults of an HTTP service at once, each by its key: what each row of a DataFrame says of them."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import pytest
from enrichkit_http import HttpConfig

from enrichkit import enrich

from ..faults import HTTP_FAULTS, MAX_BYTES, POLICIES, PROFILE, TWICE, all_three, misbehave, policy_of, says, value_at
from ..sparkless import assert_nothing_silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from enrichkit.local import HttpService

pytestmark = pytest.mark.spark

FAULTS = {fault.name: fault for fault in HTTP_FAULTS if not fault.wait}
GOOD = [f"u{n}" for n in range(100)]
SPARE = {"name": "spare", "score": -1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "carrier"), [*((policy, "arrow") for policy in POLICIES), ("null", "pandas"), ("default", "pandas")]
)
def test_each_row_tells_its_own_fault_and_all_others_have_their_values(
    spark: SparkSession, http_service: HttpService, policy: str, carrier: str
) -> None:
    misbehave(http_service, tuple(FAULTS.values()))
    keys = [*GOOD[:50], *FAULTS, None, *GOOD[50:], *FAULTS, None]
    config = HttpConfig(url=f"{http_service.url}/{uuid.uuid4()}/{{}}", max_bytes=MAX_BYTES)
    options = {**all_three(policy_of(policy, SPARE)), "timeout": 2.0, "retry": TWICE, "carrier": carrier}
    column = enrich(config, "k", returns=PROFILE, details=True, max_fallback_ratio=1.0, **options)
    frame = spark.createDataFrame([(key,) for key in keys], "k string").coalesce(1).select("k", column.alias("o"))
    found = [(row.k, row.o.asDict(recursive=True)) for row in frame.collect()]
    assert keys == [key for key, _ in found]
    assert_nothing_silent([outcome for _, outcome in found])
    for key, outcome in found:
        fault = FAULTS.get(key)
        status = "null_key" if key is None else fault.status if fault is not None else "ok"
        error = fault.error if fault is not None else ""
        if fault is not None and fault.away and outcome["status"] == "timeout":
            # Nobody else was answered any more when these keys were asked again, so that the service seemed to be away.
            status, error = "timeout", rf"TimeoutError: no answer within 2 s; last: {error or says('503')}"
        assert (key, status) == (key, outcome["status"])
        assert re.fullmatch(error, outcome["error"] or ""), (key, outcome)
        fallback = status not in ("ok", "null_key") and policy != "null"
        assert (value_at(key) if status == "ok" else SPARE if fallback else None) == outcome["value"], (key, outcome)
        origins = [None] if key is None else ["fallback"] if fallback else ["call", "shared"]  # with the row before
        assert outcome["origin"] in origins, (key, outcome)
