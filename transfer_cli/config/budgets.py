"""What may stand beside `budget=` on a command line and in a config."""

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from transfer_cli.budget import Budget
from transfer_cli.config.dialled import dialled_keys
from transfer_cli.config.literal import quoted
from transfer_cli.errors import ConfigError

_LENGTHS = ("loop.steps", "loop.epochs", "loop.tokens", "loop.flops", "loop.minutes")


def with_budget(command: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return overrides with the model that a budget begins with, where none is typed."""
    chosen = (word for word in words if word != "budget=null")
    typed = {word.lstrip("+").partition("=")[0]: word for word in chosen}
    if command == "pretrain":
        return (*words, "model=dial") if "budget" in typed and "model" not in typed else words
    if "model=dial" in words:
        raise ConfigError("model=dial: decides a pretraining; take model=tiny or another one")
    if command != "finetune" or not {"budget", "models"} & typed.keys():
        return words
    decided = sorted(typed.keys() & {"adaptation", "experiment", "before", "init", *_LENGTHS})
    if decided:
        raise ConfigError(
            f"budget: decides what trains and for how long; leave {' and '.join(decided)} out, or "
            "bound the time of any run by loop.minutes"
        )
    if "models" not in typed:
        return words
    if "budget" not in typed or "init_from" in typed:
        raise ConfigError("models: a budget=10min chooses one of them, in place of init_from=MODEL")
    [models] = OverridesParser.create().parse_overrides([typed["models"]])
    names = models.value()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not names:
        raise ConfigError("models: must be a list of names, such as [minilm,distilbert]")
    return (*words, f"init_from={quoted(names[0])}")


def check_budget(config: DictConfig) -> None:
    """Refuse a budget that is none, that has nothing to choose, or stands beside another length."""
    if config.get("budget") is None:
        return
    budget = Budget.parse(config.budget)
    if "dial" not in config:
        if budget.unit != "s":
            raise ConfigError(f"budget: an adaptation is bounded by a time, not by {config.budget}")
        return
    if config.dial is None:
        raise ConfigError(
            "budget: chooses how deep a model is, which model=dial can be: leave model= out, or "
            "bound the time of any run by loop.minutes"
        )
    typed = [key.key for key in dialled_keys(config) if key.key == "loop.tokens" and key.is_set]
    typed += [f"loop.{name}" for name in ("steps", "epochs", "flops", "minutes")
              if config.loop[name] is not None]  # fmt: skip
    if typed and config.resume is None:
        raise ConfigError(f"budget: decides how long the run is; leave {' and '.join(typed)} out")
