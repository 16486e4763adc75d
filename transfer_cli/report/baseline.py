"""Which group of a task the others are compared with, and how they differ from it."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from transfer_cli.config.plain_yaml import scalar
from transfer_cli.errors import ConfigError, nearest
from transfer_cli.report.contents import FINISHED, Comparison, Group
from transfer_cli.report.differing_settings import canonical, is_setting, plain
from transfer_cli.report.outcomes import OutcomeReader
from transfer_cli.report.significance import compare
from transfer_cli.report.statistics import holm

Words = Mapping[str, str]
"""Settings of a baseline as they were typed: `adaptation` -> `full`."""

_USUAL = {"adaptation": "full"}
_MOST_NAMED = 12


def parse_words(typed: str | None) -> Words:
    """Return what `--baseline` asks for: `adaptation=full optimizer.lr=1e-3`.

    Raises:
        ConfigError: These are no settings.
    """
    try:
        words = shlex.split(typed or "")
    except ValueError as error:
        raise ConfigError(f"--baseline {typed}: {error}") from error
    if typed is not None and (not words or not all("=" in word for word in words)):
        raise ConfigError(
            f"--baseline {typed!r}: expected KEY=VALUE, several in quotes, such as "
            '"adaptation=full optimizer.lr=1e-3"'
        )
    pairs = (word.partition("=") for word in words)
    return {key: value for key, _, value in pairs}


def check_words(words: Words, groups: Sequence[Group]) -> None:
    """Refuse a baseline that no group is.

    Raises:
        ConfigError: None has all of the settings; the message names what may be meant.
    """
    for key, value in words.items():
        known = dict.fromkeys(
            plain(group.runs[0].settings[key])
            for group in groups
            if key in group.runs[0].settings and is_setting(key)
        )
        if not known:
            keys = {key for group in groups for key in group.runs[0].settings if is_setting(key)}
            raise ConfigError(f"--baseline: there is no setting {key!r}.{nearest(key, keys)}")
        if not any(fits(group, {key: value}) for group in groups):
            raise ConfigError(
                f"--baseline: no run has {key}={value}.{nearest(value, known)} "
                f"There are {', '.join([*known][:_MOST_NAMED])}"
            )
    if words and not any(fits(group, words) for group in groups):
        raise ConfigError(f"--baseline: no run has all of {_shown(words)}; leave some out")


def fits(group: Group, words: Words) -> bool:
    """Return whether a group has some settings."""
    settings = group.runs[0].settings
    return all(
        key in settings and canonical(settings[key]) in (canonical(scalar(value)), value)
        for key, value in words.items()
    )


class Against:
    """The groups of a task against their baseline.

    Args:
        groups: The groups, best first.
        words: What the baseline is to be; nothing: the group of full fine-tuning where there is
            one such group, else the best one. Where it fits several, each group is compared with
            that which has its other settings, where there is one, else with the best of them.

    Attributes:
        name: What the baseline is called; none where there is nothing to compare.
    """

    def __init__(self, groups: Sequence[Group], words: Words) -> None:
        self._groups = groups
        self._words = words
        asked = [group for group in groups if words and fits(group, words)]
        self._is_missing = bool(words) and not asked
        usual = [group for group in groups if fits(group, _USUAL)]
        self._bases = asked or (usual if len(usual) == 1 else list(groups[:1]))
        self.name: str | None = None
        if len(groups) > 1:
            several = len(self._bases) > 1
            self.name = _shown(words) if several else self._bases[0].label

    def compared(self, measure: str, reader: OutcomeReader) -> tuple[list[Group], list[str]]:
        """Return the groups with their differences, and why others have none, a line each."""
        if self.name is None or not measure:
            return list(self._groups), []
        bases = {base.label for base in self._bases}
        found = {
            group.label: self._difference(group, measure, reader)
            for group in self._groups
            if group.label not in bases and _is_finished(group)
        }
        known = {label: each for label, each in found.items() if isinstance(each, Comparison)}
        corrected = _corrected(known)
        groups = [replace(group, against=corrected.get(group.label)) for group in self._groups]
        reasons = Counter(each for each in found.values() if isinstance(each, str))
        return groups, [*self._notes(known.values(), measure), *_reasons(reasons, len(found))]

    def _difference(self, group: Group, measure: str, reader: OutcomeReader) -> Comparison | str:
        base = self._base_of(group)
        found = compare(group.runs, base.runs, measure, reader)
        return found if isinstance(found, str) else replace(found, baseline=base.label)

    def _base_of(self, group: Group) -> Group:
        """Return the baseline that has a group's other settings; else the best one."""
        for base in self._bases:
            others = (group.settings.keys() | base.settings.keys()) - self._words.keys()
            if all(
                canonical(group.settings.get(key)) == canonical(base.settings.get(key))
                for key in others
            ):
                return base
        return self._bases[0]

    def _notes(self, known: Iterable[Comparison], measure: str) -> Iterator[str]:
        if self._is_missing:
            yield (
                f"no group here has {_shown(self._words)}; the baseline is {self._bases[0].label}"
            )
        others = {each.measure for each in known if each.measure != measure}
        if others:
            yield f"differences are in {', '.join(sorted(others))}, which is a sum over items"


def _corrected(known: Mapping[str, Comparison]) -> dict[str, Comparison]:
    """Return comparisons with their p corrected for how many there are."""
    if len(known) < 2:
        return dict(known)
    values = holm([each.p for each in known.values()])
    return {
        label: replace(each, corrected=value)
        for (label, each), value in zip(known.items(), values, strict=True)
    }


def _reasons(found: Counter[str], total: int) -> Iterator[str]:
    for reason, count in found.items():
        which = "no group" if count == total else f"{count} of {total} groups not"
        yield f"{which} compared item by item: {reason}"


def _is_finished(group: Group) -> bool:
    return any(run.status == FINISHED for run in group.runs)


def _shown(words: Words) -> str:
    return " ".join(f"{key}={value}" for key, value in words.items())
