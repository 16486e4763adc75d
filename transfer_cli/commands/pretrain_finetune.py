"""`transfer pretrain` and `transfer finetune`."""

import logging
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omegaconf import DictConfig

from transfer_cli.assembly.foretold import runs_of_ladder, with_prediction
from transfer_cli.assembly.resumed_config import AUTO, find_run
from transfer_cli.config.build import TARGET, resolved_node
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.decided import with_values
from transfer_cli.engine import distributed
from transfer_cli.errors import ConfigError
from transfer_cli.training import budgeted, budgeted_adaptation
from transfer_cli.training.train import Foresight, train

log = logging.getLogger(__name__)

BUDGET_CHOOSERS = MappingProxyType(
    {"pretrain": budgeted.within_budget, "finetune": budgeted_adaptation.within_budget}
)
"""What a budget chooses, by command."""


def finetune(config: DictConfig) -> Path:
    """Adapt a pretrained model to labelled data; return the run directory."""
    before, config = with_run_before(config)
    if before is not None:
        if config.devices != 1 or distributed.started_by_torchrun():
            raise ConfigError("before: two runs in one command are for one process; type devices=1")
        folder = train(before, "finetune")
        log.info("the run before, %s, is done; now the one that starts from it", folder)
        config = with_values(config, {"init_from": str(folder)})
    config, line = budgeted_adaptation.with_earlier_choice(config, CommandLine.current())
    foresight = Foresight(BUDGET_CHOOSERS["finetune"], lambda plan: plan)
    return train(config, "finetune", line, foresight)


def pretrain(config: DictConfig) -> Path:
    """Train a language model on unlabelled text; return the run directory."""
    if config.ladder.of is not None:
        runs_of_ladder(config.ladder.of)
    foresight = Foresight(BUDGET_CHOOSERS["pretrain"], with_prediction)
    return train(config, "pretrain", CommandLine.current(), foresight)


def with_run_before(config: DictConfig) -> tuple[DictConfig | None, DictConfig]:
    """Return the config of the run that comes before, None where there is none to train, and this.

    It lies beside that one, at `run.dir` with `-before` behind it, and goes on with `resume=auto`.
    """
    if config.get("before") is None:
        return None, config
    place = None if config.run.dir is None else f"{Path(config.run.dir).expanduser()}-before"
    if find_run(config.resume, config.run.dir) is not None:
        goes_on = config.resume == AUTO
        return None, with_values(config, {"init_from": place}) if goes_on else config
    changed: dict[str, Any] = {"before": None, "experiment": None, "run.dir": place}
    for name, section in resolved_node(config.before, "before").items():
        is_whole = not isinstance(section, dict) or TARGET in section
        changed |= {name: section} if is_whole else {f"{name}.{k}": v for k, v in section.items()}
    return with_values(config, changed), config
