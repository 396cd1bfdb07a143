"""A job with a monitor, of which `test_journal_kill.py` kills a worker: prints what came out of it."""

from __future__ import annotations

import json
import sys

from chaos_driver import job
from enrichkit_http import HttpConfig

from enrichkit import Journal, enrich, local, monitor
from enrichkit.testing.bench import wait_until


def main() -> None:
    asked = json.loads(sys.argv[1])
    journal = Journal(asked["journal"], run_id="tuesday") if asked["journal"] else None
    with local.spark(master=asked["master"]) as spark, monitor(terminal=False) as watched:
        config = HttpConfig(url=asked["url"] + "/{}", value="name")
        values = enrich(config, "key", returns="string", capacity=asked["capacity"], journal=journal)
        result = job(spark, values, asked["keys"], asked["tasks"])
        assert wait_until(lambda: watched.view()["state"] != "running")
        result["totals"] = watched.view()["totals"]
        sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
