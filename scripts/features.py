"""Print what people can type, a line each: commands and flags, keys, groups with their options.

python scripts/features.py > now.txt

Another commit's, by its package: `PYTHONPATH=OTHER python scripts/features.py`. `diff` shows what
came and went.
"""

import re
from collections.abc import Iterator

import yaml

from transfer_cli.config import flags
from transfer_cli.config.commands import ABOUT, ALL, FLAGS, SPOKEN
from transfer_cli.config.describe import declared, options
from transfer_cli.config.flat import flat


def features() -> Iterator[str]:
    """Yield each thing that can be typed."""
    for name, command in ALL.items():
        yield f"command {name}"
        yield from (f"flag {name} {flag}" for flag in re.findall(r"--[\w-]+", command.usage))
        if command.composes:
            yield from (f"key {name} {SPOKEN.get(key, key)}" for key in declared(name))
            yield from (f"place {name} {key}" for key, _ in command.places)
    yield from (f"command {name} {kind}" for name, kinds in ABOUT.items() for kind in kinds)
    yield from (f"flag {flag}" for flag, _ in FLAGS)
    yield from (f"flag {flag}" for names in flags._FLAGS for flag in names.split())
    for option in options():
        yield f"option {option.group}={option.name}"
        # Of the group: an option may have a key from another one that it extends.
        keys = dict(flat(yaml.safe_load(option.file.read_text(encoding="utf-8")) or {}))
        plain = (key for key in keys if not key.endswith("_target_") and key != "defaults")
        yield from (f"key {option.group}= {key}" for key in plain)


if __name__ == "__main__":
    print("\n".join(sorted(set(features()))))
