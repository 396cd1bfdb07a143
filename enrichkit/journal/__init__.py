"""
The journal: answers on durable storage, for reruns of the same job and for other jobs.

::

    config.py    `Journal`, which users write, and the scope of a run
    table.py     which answers belong together: source, type of the key, type of the value
    columns.py   keys as Arrow columns, and their hashes
    blocks.py    the bytes of a file: a header, and blocks with checksums
    stores.py    where files are: a folder of this machine, or an object store
    writer.py    answers -> blocks of one file
    index.py     blocks of all files of a scope -> answers
    opening.py   the writer and the index that the engine gets
    admin.py     `list`, `show` and `expire` of the command line

Importing this package does not load pyarrow; importing `opening` or `admin` does.
"""

from ..errors import JournalError
from .config import Journal, Scope

__all__ = ["Journal", "JournalError", "Scope"]
