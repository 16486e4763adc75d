"""Write `docs/keys.md`, the reference of every key, from what `conf/` and the schema say of them.

python scripts/keys_page.py
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from transfer_cli.config.commands import ALL, TYPED_KEYS
from transfer_cli.config.describe import declared_keys, key_help, options

PAGE = Path(__file__).parents[1] / "docs" / "keys.md"

HEAD = """\
# Every key

Written by `python scripts/keys_page.py` from what `conf/` and the schema say of each. First the
keys that are always there, with the commands that have them; then those that come with an option,
such as `data=table`. A key is typed as `KEY=VALUE`; `transfer COMMAND --help all` shows the same
with the values that hold now. An option without a value here has that of the option it extends.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *_command_keys(), *_option_keys()])


def _command_keys() -> Iterator[str]:
    """Yield the keys that commands declare themselves, a section of the config at a time."""
    commands = defaultdict(list)
    for name in (name for name, command in ALL.items() if command.composes):
        meanings = key_help(name)
        for key, declared in declared_keys(name).items():
            if meanings.get(key):
                row = key, _value(declared.value), meanings[key]
                commands[row].append(name)
    # Those of a command come first.
    rows = sorted(commands, key=lambda row: (row[0].rpartition(".")[0], row))
    for section, section_rows in groupby(rows, lambda row: row[0].rpartition(".")[0]):
        yield f"## {f'`{section}`' if section else 'Of a command'}\n"
        yield "| key | by default | what it is | of |\n|---|---|---|---|"
        for key, value, text in section_rows:
            of = ", ".join(commands[key, value, text])
            yield _table_row(f"`{TYPED_KEYS.get(key, key)}`", value, text, of)
        yield ""


def _option_keys() -> Iterator[str]:
    """Yield the keys that come with an option, a group at a time."""
    for group, members in groupby(options(), lambda option: option.group):
        if group.partition("/")[0] in ("experiment", "sweep", "hydra"):
            continue
        yield f"## With `{group}=`\n"
        values, texts = defaultdict(dict), {}
        for option in members:
            yield f"- `{option.name}`: {_escaped(option.line)}"
            for key in option.typed_keys():
                values[key.name][option.name] = _value(key.value)
                texts[key.name] = texts.get(key.name) or key.line
        if values:
            yield "\n| key | by default | what it is |\n|---|---|---|"
        for key, of in values.items():
            yield _table_row(f"`{key}`", _values(of), texts[key])
        yield ""


def _value(text: str) -> str:
    shown = text.strip("\"'")
    known = {
        "MISSING": "needed", "???": "needed", "None": "null", "True": "true", "False": "false",
        "field(default_factory=dict)": "{}",
    }  # fmt: skip
    shown = known.get(shown, shown)
    return f"`{shown}`" if shown and shown != "needed" else shown


def _values(of: dict[str, str]) -> str:
    """Return the values of a key in the options that have it."""
    if len(set(of.values())) == 1:
        return next(iter(of.values()))
    return ", ".join(f"{option} {value}" for option, value in of.items())


def _table_row(*cells: str) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
