"""The rules of `model=dial` at work in a config: `${dial:KEY}` is what the rule of a key says."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from transfer_cli.config.decided import with_values
from transfer_cli.dial import RULES, Value
from transfer_cli.errors import ConfigError

_BY_KEY = {rule.key: rule for rule in RULES}


def value_by_rule(key: str, *, _root_: DictConfig) -> Value:
    """Return what the rule of a key says in a config, whose other keys may wait for theirs."""
    rule = _BY_KEY[key]
    inputs = [OmegaConf.select(_root_, need) for need in rule.needs]
    for need, value in zip(rule.needs, inputs, strict=True):
        if value is not None and (isinstance(value, bool | str) or not value > 0):
            raise ConfigError(f"{need}: must be a number above 0, got {value!r}")
    return rule.function(*inputs)


class DialledKey(NamedTuple):
    """A key that a rule decides: its value, what the rule says, and why."""

    key: str
    value: Value
    rule: Value
    why: str

    @property
    def is_set(self) -> bool:
        """Whether something else than the rule decided."""
        return self.value != self.rule

    def __str__(self) -> str:
        otherwise = f", set otherwise; its rule says {self.rule}" if self.is_set else ""
        return f"{self.value}{otherwise}: {self.why}"


def dialled_keys(config: DictConfig) -> Iterator[DialledKey]:
    """Yield all keys that rules decide, with the values that they have; none without a dial."""
    for rule in RULES if config.get("dial") is not None else ():
        value, by_rule = OmegaConf.select(config, rule.key), value_by_rule(rule.key, _root_=config)
        if rule.key == "tokenizer.size" and isinstance(value, int):
            by_rule = min(value, int(str(by_rule).partition(":")[2]))  # what the text came to
        yield DialledKey(rule.key, value, by_rule, rule.why)


def apply_rules(config: DictConfig, changes: Mapping[str, Any], typed: Sequence[str]) -> DictConfig:
    """Return a config with other values, and what the rules then say of all that is not typed."""
    typed_keys = {word.lstrip("+").partition("=")[0] for word in typed}
    keep = (
        {entry.key for entry in dialled_keys(config) if entry.is_set} | typed_keys | changes.keys()
    )
    config = with_values(config, changes)
    for rule in RULES:
        if rule.key not in keep:
            config = with_values(config, {rule.key: value_by_rule(rule.key, _root_=config)})
    return config


def keys_found_by_rule(config: DictConfig, given: Set[str]) -> Set[str]:
    """Return the keys that rules or a budget decide, and that a resume leaves as they are."""
    keys = {entry.key for entry in dialled_keys(config)} - given
    if keys and config.get("budget") is not None:
        keys |= {"model.depth", "loop.minutes", "dial.foreseen"} - given
    return keys


def dial_record(config: DictConfig) -> dict[str, Any] | None:
    """Return what the dial came to, for a run's results; None without one."""
    entries = {entry.key: entry for entry in dialled_keys(config)}
    if not entries:
        return None
    foreseen = config.dial.get("foreseen")
    chosen = {} if foreseen is None else {"budget": config.budget, "foreseen": foreseen}
    return {
        **chosen,
        "model.depth": config.model.depth,
        "dial.tokens_per_parameter": config.dial.tokens_per_parameter,
        **{key: entry.value for key, entry in entries.items()},
        "set": [key for key, entry in entries.items() if entry.is_set],
    }
