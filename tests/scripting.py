"""Scripts of the project as modules, for their tests."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[1] / "scripts"


@contextmanager
def imported(name: str) -> Iterator[ModuleType]:
    """Lend a script, which may import others of its folder."""
    before = set(sys.modules)
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(SCRIPTS))
        for new in set(sys.modules) - before:
            if (getattr(sys.modules[new], "__file__", None) or "").startswith(str(SCRIPTS)):
                del sys.modules[new]
