"""What is meant by a name that a command does not know."""

import pytest

from transfer_cli.config.describe import keys_and_options
from transfer_cli.config.schema import COMMANDS
from transfer_cli.config.suggest import OTHER_NAMES, options_with, suggest


@pytest.fixture(scope="module")
def known():
    return {command: {key for key, _ in keys_and_options(command)} for command in COMMANDS}


@pytest.mark.parametrize("key", OTHER_NAMES)
def test_what_other_libraries_call_a_key_is_a_key(key, known):
    assert any(key.partition("=")[0] in keys for keys in known.values())


@pytest.mark.parametrize(
    ("name", "command", "said"),
    [
        ("lr", "evaluate", ""),
        ("learning_rate", "predict", ""),
        ("dropout", "pretrain", " Did you mean 'model.dropout'?"),
        ("dropout", "finetune", " Did you mean 'objective.dropout'?"),
        ("training.lr", "finetune", " Did you mean 'optimizer.lr'?"),
        ("data.file", "finetune", " Did you mean 'data.train'?"),
        ("file", "predict", " Did you mean 'input'?"),
        ("out", "export", " Did you mean 'to'?"),
        ("lora", "finetune", " Did you mean 'adaptation=lora'?"),
        ("bs", "finetune", " Did you mean 'loop.batch'?"),
        ("size", "finetune", ""),
        ("name", "finetune", " Did you mean 'data.name'?"),
        ("xyz.abc", "finetune", ""),
        ("", "finetune", ""),
    ],
)
def test_only_keys_of_the_command_are_named(name, command, said):
    assert suggest(name, command) == said


def test_keys_of_own_options_are_known(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "own.yaml").write_text("# Mine\n_target_: a.B\nspread: 3\n")

    assert suggest("spread", "pretrain", tmp_path) == " Did you mean 'model.spread'?"
    assert suggest("spread", "pretrain") == ""


def test_the_options_that_bring_a_key_are_named_but_not_those_of_other_commands():
    found = options_with("data.train", "finetune")
    assert {"data=choices", "data=numbers", "data=table"} <= {*found}
    assert "data=text" not in found
    assert options_with("optimizer.momentum", "finetune") == ["optimizer=muon", "optimizer=sgd"]
    assert options_with("nothing.there", "finetune") == []
