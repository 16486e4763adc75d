import subprocess
import sys

import pytest

from transfer_cli.config import commands
from transfer_cli.config.compose import compose
from transfer_cli.config.describe import (
    OWN,
    Choice,
    declared,
    description,
    key_help,
    keys_in,
    offered,
    options,
)
from transfer_cli.config.flags import Request


def option_of(group, name):
    [found] = [each for each in options() if (each.group, each.name) == (group, name)]
    return found


def names_of(command, group, **how):
    found = offered(command, commands.ALL[command], **how)
    return [option.name for option in found if option.group == group]


def test_the_description_is_the_first_comment_that_is_no_instruction(tmp_path):
    file = tmp_path / "option.yaml"
    file.write_text("# @package _global_\n#\n# What it is\nwidth: 1\n# later\n")

    assert description(file) == "What it is"


def test_a_file_without_a_comment_has_no_description(tmp_path):
    file = tmp_path / "option.yaml"
    file.write_text("width: 1\n# later\n")

    assert description(file) == ""


def test_own_options_are_listed_and_a_packaged_one_of_the_same_name_wins(own):
    found = {option.name: option for option in options(own) if option.origin == OWN}

    assert not found["huge"].shadowed
    assert found["tiny"].shadowed


def test_neither_hydra_nor_omegaconf_nor_yaml_is_imported_to_describe():
    program = (
        "import sys; from transfer_cli.config.describe import options, key_help; options(); "
        "key_help('finetune'); sys.exit(bool({'hydra', 'omegaconf', 'yaml'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- what means something ----------------------------------------------------------------------


def test_tasks_are_hidden_from_pretraining_and_texts_from_fine_tuning():
    assert "trec6" not in names_of("pretrain", "data")
    assert "wikitext103" not in names_of("finetune", "data")


def test_what_a_condition_rules_out_is_hidden():
    assert "tiny" in names_of("finetune", "model")
    assert names_of("finetune", "model", without=["model/"]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "without", "expected"),
    [
        ("finetune", ["model/", "tokenizer/"], "sample/finetune tutorial/full tutorial/multitask"),
        ("pretrain", ["adaptation"], "recipe/clm sample/pretrain tutorial/pretrain_mlm"),
        ("prepare", [], ""),
    ],
)
def test_an_experiment_is_offered_to_the_command_that_can_run_it(command, without, expected):
    found = names_of(command, "experiment", without=without)

    assert set(expected.split()) <= set(found)
    assert not set(found) & ({"sample/pretrain"} if command == "finetune" else {"sample/finetune"})
    for name in found:
        compose(command, Request(overrides=(f"experiment={name}",)))


# --- keys --------------------------------------------------------------------------------------


def test_the_meaning_of_a_key_stands_beside_or_above_it():
    text = """\
# What the file is
_target_: a.B
# above, over
# two lines
one: 1
two:                 # of a section
  three: "x"         # beside
  four: [a, b]

five: null
"""

    assert [(key.name, key.value, key.line) for key in keys_in(text)] == [
        ("_target_", "a.B", ""),
        ("one", "1", "above, over two lines"),
        ("two", "", "of a section"),
        ("two.three", '"x"', "beside"),
        ("two.four", "[a, b]", ""),
        ("five", "null", ""),
    ]


def test_an_option_names_what_it_is_put_together_from():
    assert list(option_of("adaptation", "ulmfit").choices()) == [
        Choice("adaptation", "", ("full",)),
        Choice("adaptation/plan", "adaptation.plan", ("gradual_unfreezing",)),
        Choice("adaptation/layer_scale", "adaptation.layer_scale", ("geometric_ulmfit",)),
        Choice("schedule", "schedule", ("slanted",)),
    ]


@pytest.mark.parametrize("name", [name for name, each in commands.ALL.items() if each.composes])
def test_the_declared_keys_are_those_of_the_config(name):
    config = compose(name, Request())
    plain = {key for key in declared(name) if "." not in key}

    assert {key.partition(".")[0] for key in declared(name)} == set(map(str, config))
    assert plain <= set(map(str, config))


def test_a_command_may_say_more_of_a_key_than_others():
    assert "fine-tuned" in key_help("predict")["run"]
    assert key_help("predict")["device"] == key_help("finetune")["device"]
