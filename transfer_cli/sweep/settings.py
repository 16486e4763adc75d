"""`sweep.*`: how the jobs of a sweep run, and what a search looks for, checked."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from transfer_cli.errors import ConfigError, at_least, one_of

AUTO = "auto"


@dataclass(frozen=True)
class Settings:
    """The values of the `sweep` node of a config.

    Args:
        isolate: Whether each job gets a process of its own.
        workers: Jobs side by side; None: as many as there are GPUs for.
        stops: Whether a failed job ends the sweep.
        trials: Of a search: how many in all.
        objective: Of a search: `split/measure`, or a dotted key of results.json.
        direction: Of a search: minimize, maximize or auto.
        sampler: Of a search: tpe or random.
        prune: Of a search: whether hopeless trials end early.
        study: Of a search: its file; None: in the sweep's folder.
    """

    isolate: bool
    workers: int | None
    stops: bool
    trials: int
    objective: str
    direction: str
    sampler: str
    prune: bool
    study: Path | None

    @classmethod
    def of(cls, node: DictConfig) -> "Settings":
        """Return the settings of a `sweep` node.

        Raises:
            ConfigError: A value cannot be; the message names its key.
        """
        one_of("sweep.on_error", node.on_error, ("continue", "stop"))
        one_of("sweep.direction", node.direction, (AUTO, "minimize", "maximize"))
        one_of("sweep.sampler", node.sampler, ("tpe", "random"))
        at_least("sweep.trials:", node.trials, 1, ConfigError)
        workers = None
        if node.workers != AUTO:
            if not str(node.workers).isdecimal() or int(node.workers) < 1:
                raise ConfigError(
                    f"sweep.workers: must be auto or a whole number from 1, got {node.workers!r}"
                )
            workers = int(node.workers)
        if not node.isolate and workers not in (None, 1):
            raise ConfigError(
                "sweep.isolate: one process has one job at a time; leave sweep.workers out, or "
                "sweep.isolate"
            )
        return cls(
            isolate=node.isolate,
            workers=workers,
            stops=node.on_error == "stop",
            trials=node.trials,
            objective=node.objective,
            direction=node.direction,
            sampler=node.sampler,
            prune=node.prune,
            study=Path(node.study).expanduser() if node.study else None,
        )
