"""
A slow job under a monitor: a page while it runs, one sentence on what limits it, advice, and a report that stays.

    Waiting for the source: 4 of 4 calls in flight
    advice: More calls in flight, if the source can serve them as quickly. capacity=16
    600 rows, 600 calls, 540 ok, 60 missing
    written: watched.html

    with capacity=16 at least twice as fast: True
"""

import time

from enrichkit_http import HttpConfig

import enrichkit
from enrichkit import enrich, local

with local.http() as service, local.spark() as spark:
    service.script(latency=0.1)  # a slow service
    users = HttpConfig(url=service.url + "/users/{}", returns="name string, score int")
    # Every tenth user is one whom the service does not know.
    rows = spark.range(0, 600, 1, 2).selectExpr("if(id % 10 = 0, 'missing-', 'u') || id AS user_id")

    def seconds(**options: int) -> float:
        began = time.monotonic()
        enriched = rows.withColumn("user", enrich(users, "user_id", **options))
        enriched.write.format("noop").mode("overwrite").save()
        return time.monotonic() - began

    # Enrichments that are made inside the `with` report to the monitor. Its page is at `monitor.url`, which is also on
    # stderr. On a terminal, the monitor would show a table there.
    with enrichkit.monitor(rows=600, terminal=False) as monitor:
        slow = seconds(capacity=4)

    # The monitor has ended, and still has its figures. `view` returns what the page shows; here without the latencies.
    view = monitor.view()
    print(view["sentence"].partition(", median")[0])
    advice = view["advice"][0]
    print(f"advice: {advice['text']} {advice['option']}={advice['value']}")
    stats = monitor.stats()
    print(f"{stats.rows} rows, {stats.calls} calls, {stats.ok} ok, {stats.missing} missing")

    # The page as one file, which needs no server; `enrichkit report watched.html` shows it as text.
    monitor.report("watched.html")
    print("written: watched.html")

    fast = seconds(**{advice["option"]: int(advice["value"])})
    print(f"\nwith {advice['option']}={advice['value']} at least twice as fast:", slow / fast > 2)
