"""
What an enrichment does while it runs, and what it did: statistics, the monitor, the report, exports.

Modules that workers use:

    stats.py        the statistics of tasks: immutable, with a version number, merged by addition
    clock.py        measures where the seconds of a task go
    task.py         one task as it is observed: identity, state, statistics so far
    sender.py       the thread that pushes the statistics of this process's tasks to the monitor
    hooks.py        calls the hook `enrichkit_task_finished` of other packages

Modules that the driver program uses:

    active.py       the address of the monitor, which plans carry to the workers
    monitor.py      `monitor()`: the context manager
    server.py       runs the web server
    routes.py       what the web server answers: pushes of workers, the page, exports
    page/           the page: HTML, CSS and JavaScript
    state.py        everything that workers have pushed, and its history
    view.py         the data that the page, the terminal and the report show: a `View`
    present.py      makes the `View` from the state
    spending.py     what the calls have cost, and about how much cache, journal and the like saved
    advice.py       what limits the job, and what would make it faster
    terminal.py     a live table in a terminal
    report.py       one HTML file that needs no server
    totals.py       `observe()`: exact totals of a DataFrame's rows by status and origin, counted by Spark itself
    prometheus.py   the text format of Prometheus
    otel.py         OpenTelemetry metrics and spans
"""

from __future__ import annotations
