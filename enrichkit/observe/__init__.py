"""
What an enrichment does while it runs, and what it did: statistics, the monitor, the report, exports.

On a worker, from the engine outwards:

    stats.py        the statistics of tasks: frozen, versioned, merged by addition
    clock.py        where the seconds of a task went
    task.py         one task as it is observed: identity, state, statistics so far
    sender.py       the thread that pushes the tasks of this process to the monitor

On the driver:

    monitor.py      `monitor()`: the context manager, and how a plan gets its address
    server.py       the web server: takes what workers push, serves the page, Prometheus text
    state.py        all that was pushed, and its history
    view.py         the form in which pages, terminals and reports read the state
    advice.py       what limits the job, and what would make it faster
    terminal.py     a live table in a terminal
    report.py       one HTML file that needs no server
    totals.py       `observe()`: exact totals of a DataFrame by Spark itself
    otel.py         OpenTelemetry metrics and spans
"""

from __future__ import annotations
