"""
What an enrichment does while it runs, and what it did: statistics, the monitor, the report, exports.

On a worker, from the engine outwards:

    stats.py        the statistics of tasks: frozen, versioned, merged by addition
    clock.py        where the seconds of a task went
    task.py         one task as it is observed: identity, state, statistics so far
    sender.py       the thread that pushes the tasks of this process to the monitor
    hooks.py        calls the hook `enrichkit_task_finished` of other packages

On the driver:

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
    totals.py       `observe()`: exact totals of a DataFrame, counted by Spark itself
    prometheus.py   the text format of Prometheus
    otel.py         OpenTelemetry metrics and spans
"""

from __future__ import annotations
