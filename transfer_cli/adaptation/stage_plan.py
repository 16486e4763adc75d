"""What a plan comes to in a run: which parameters train in which steps."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StagePlan:
    """The steps from `begin`, counted from 0, up to `end`, and the parameters that train then."""

    begin: int
    end: int
    trains: frozenset[str]
    rate: float = 1.0
    patience: int | None = None
