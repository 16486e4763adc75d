"""Files of the rows in `text.yaml` that are no text."""

import os
from pathlib import Path


def oddly_named(path):
    """Write a file beside `path` whose name is in Latin-1."""
    name = Path(os.fsdecode(b"caf\xe9.txt"))
    (path.parent / name).write_text("of the old river king\n" * 120)
