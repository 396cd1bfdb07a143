"""
Batches: files of requests that a service answers later, within a day for example, at a lower price.

::

    state.py     the states of batches, as files in the folder of the journal, which stores answers
    work.py      distinct keys -> batches of the service -> answers in the journal
    frames.py    `submit_batches` and `collect_batches`, which users call
    report.py    `Batches`, which both functions return

This package runs on the driver; a connector that offers batches returns a `BatchForm`, see `interface/batch_form.py`.
Nothing is paid twice, because each batch is recorded in the journal before it is sent.
"""
