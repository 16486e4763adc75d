"""What no value of a part can be is refused by its name: the table beside, each row built."""

import importlib
import re
from pathlib import Path

import pytest
import yaml

TABLE = yaml.safe_load(Path(__file__).with_name("refused_values.yaml").read_text("utf-8"))


def rows():
    for row in TABLE:
        for typed, said in row["refused"].items():
            yield pytest.param(row, typed, said, id=f"{row['part'].rpartition('.')[2]} {typed}")


def made(node):
    """Return the object of a node, made by its class alone: `config.build` checks more."""
    if isinstance(node, list):
        return tuple(map(made, node))
    if not isinstance(node, dict) or "_target_" not in node:
        return node
    module, _, name = node["_target_"].rpartition(".")
    values = {key: made(value) for key, value in node.items() if key != "_target_"}
    return getattr(importlib.import_module(module), name)(**values)


@pytest.mark.parametrize(("row", "typed", "said"), list(rows()))
def test_a_value_that_cannot_be_is_refused_by_its_name(row, typed, said):
    words = re.split(r" (?=\w+=)", typed)
    pairs = (word.partition("=")[::2] for word in words)
    values = {key: yaml.safe_load(value) for key, value in pairs}
    node = {"_target_": f"transfer_cli.{row['part']}", **row.get("with", {})}

    with pytest.raises(ValueError, match=re.escape(said)):
        made({**node, **values})
