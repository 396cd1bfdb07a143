"""
Batches: files of requests that a service answers later, within a day for example, at a lower price.

::

    state.py     the states of batches, as files in the folder of the journal
    work.py      distinct keys -> batches of the service -> answers in the journal
    frames.py    `submit_batches` and `collect_batches`, which users call
    report.py    `Batches`, which both functions return

This package runs on the driver; a connector offers batches by the interface in `interface/batch_form.py`. Nothing is
paid twice, because each batch is recorded on disk before it is sent.
"""
