"""What is meant by a name that a command does not know."""

import pytest

from transfer_cli.config.meant import OTHER_NAMES, _keys, meant


@pytest.mark.parametrize("key", sorted(set(OTHER_NAMES.values())))
def test_what_other_libraries_call_a_key_is_a_key(key):
    assert key.partition("=")[0] in set(_keys("finetune", None))


@pytest.mark.parametrize(
    ("name", "command", "said"),
    [
        ("lr", "evaluate", ""),
        ("learning_rate", "predict", ""),
        ("dropout", "pretrain", " Did you mean 'model.dropout'?"),
        ("plan.lr", "finetune", ""),
        ("", "finetune", ""),
    ],
)
def test_only_keys_of_the_command_are_named(name, command, said):
    assert meant(name, command) == said


def test_keys_of_own_options_are_known(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "own.yaml").write_text("# Mine\n_target_: a.B\nspread: 3\n")

    assert meant("spread", "pretrain", tmp_path) == " Did you mean 'model.spread'?"
    assert meant("spread", "pretrain") == ""
