"""Selects parameters by name or glob pattern.

A pattern without a slash matches group names (`head.*`, `block.11`); with a slash it matches
`group/parameter` (`block.*/*norm*`).
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from transfer_cli.errors import SelectionError, nearest
from transfer_cli.model.transfer_model import LayerGroup


def select(patterns: Iterable[str], groups: Sequence[LayerGroup]) -> frozenset[str]:
    """Return the full names of the parameters that any pattern matches.

    Raises:
        SelectionError: A pattern matches nothing; the message lists the groups.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        matching = [
            name
            for group in groups
            for name in group.parameters
            if fnmatchcase(f"{group.name}/{name}" if "/" in pattern else group.name, pattern)
        ]
        if not matching:
            names = [group.name for group in groups]
            raise SelectionError(
                f"{pattern!r} matches no parameter.{nearest(pattern, names)} "
                f"The groups are {', '.join(names)}"
            )
        chosen.update(matching)
    return frozenset(chosen)
