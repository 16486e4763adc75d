"""Which group of a task the others are compared with, and how they differ from it."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from transfer_cli.config.plain_yaml import scalar
from transfer_cli.errors import ConfigError, nearest
from transfer_cli.report.contents import Comparison, Group
from transfer_cli.report.differing_settings import canonical, is_setting, plain
from transfer_cli.report.outcomes import OutcomeReader
from transfer_cli.report.significance import compare
from transfer_cli.report.statistics import holm

Words = Mapping[str, str]
"""Settings of a baseline as they were typed: `adaptation` -> `full`."""

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
    return dict(word.split("=", 1) for word in words)


def check_words(words: Words, groups: Sequence[Group]) -> None:
    """Refuse a baseline that no group is.

    Raises:
        ConfigError: None has all of the settings; the message names what may be meant.
    """
    settings = [group.runs[0].settings for group in groups]
    keys = {key for each in settings for key in each if is_setting(key)}
    for key, value in words.items():
        if key not in keys:
            raise ConfigError(f"--baseline: there is no setting {key!r}.{nearest(key, keys)}")
        known = dict.fromkeys(plain(each[key]) for each in settings if key in each)
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


def against_baseline(
    groups: Sequence[Group], words: Words, measure: str, reader: OutcomeReader
) -> tuple[str | None, list[Group], list[str]]:
    """Return the name of the baseline, the groups with their differences to it, and notes.

    The groups are those of a task, best first. Without words the baseline is the group of full
    fine-tuning if there is one such group, else the best one. Where words fit several, each group
    is compared with the one that has its other settings, else with the best of them.
    """
    if len(groups) < 2 or not measure:
        return None, list(groups), []
    asked = [group for group in groups if words and fits(group, words)]
    usual = [group for group in groups if fits(group, {"adaptation": "full"})]
    bases = asked or (usual if len(usual) == 1 else groups[:1])
    name = _shown(words) if len(bases) > 1 else bases[0].label
    found: dict[str, Comparison | str] = {}
    for group in groups:
        if group.finished and group.label not in {base.label for base in bases}:
            base = next((each for each in bases if _is_twin(each, group, words)), bases[0])
            found[group.label] = compare(group.runs, base.runs, measure, reader, base.label)
    known = {label: each for label, each in found.items() if not isinstance(each, str)}
    if len(known) > 1:
        corrected = holm([each.p for each in known.values()])
        pairs = zip(known.items(), corrected, strict=True)
        known = {label: replace(each, corrected=p) for (label, each), p in pairs}
    notes = []
    if words and not asked:
        notes.append(f"no group here has {_shown(words)}; the baseline is {bases[0].label}")
    others = {each.measure for each in known.values() if each.measure != measure}
    if others:
        notes.append(f"differences are in {', '.join(sorted(others))}, which is a sum over items")
    for reason, count in Counter(each for each in found.values() if isinstance(each, str)).items():
        which = "no group" if count == len(found) else f"{count} of {len(found)} groups not"
        notes.append(f"{which} compared item by item: {reason}")
    return name, [replace(group, against=known.get(group.label)) for group in groups], notes


def _is_twin(base: Group, group: Group, words: Words) -> bool:
    """Return whether a baseline has the same settings as a group but for `words`."""
    return all(
        canonical(group.settings.get(key)) == canonical(base.settings.get(key))
        for key in (group.settings.keys() | base.settings.keys()) - words.keys()
    )


def _shown(words: Words) -> str:
    return " ".join(f"{key}={value}" for key, value in words.items())
