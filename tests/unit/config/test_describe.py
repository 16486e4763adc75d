import dataclasses

import pytest

from transfer_cli.config import commands
from transfer_cli.config.compose import compose
from transfer_cli.config.describe import (
    OWN,
    Choice,
    declared,
    description,
    key_help,
    keys_and_options,
    keys_in,
    offered,
    options,
)
from transfer_cli.config.flags import Request
from transfer_cli.config.roles import LEARNS, ROLES, Role, role_of
from transfer_cli.config.schema import COMMANDS, FinetuneConfig, PretrainConfig
from transfer_cli.config.suggest import OTHER_NAMES, options_with, suggest


def option_of(group, name):
    [found] = [each for each in options() if (each.group, each.name) == (group, name)]
    return found


def names_of(command, group, **how):
    found = offered(command, commands.ALL[command], **how)
    return [option.name for option in found if option.group == group]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# @package _global_\n#\n# What it is\nwidth: 1\n# later\n", "What it is"),
        ("width: 1\n# later\n", ""),
    ],
)
def test_the_description_is_the_first_comment_that_is_no_instruction(tmp_path, text, line):
    (tmp_path / "option.yaml").write_text(text)

    assert description(tmp_path / "option.yaml") == line


def test_own_options_are_listed_and_a_packaged_one_of_the_same_name_wins(own):
    found = {option.name: option for option in options(own) if option.origin == OWN}

    assert not found["huge"].shadowed
    assert found["tiny"].shadowed


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


def keys_of(kind, above=""):
    """Yield the full key of every value of a config."""
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(field.type):
            yield from keys_of(field.type, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}"


def with_role(role):
    return {key for key in ROLES if role in role_of(key)}


def test_every_key_of_a_run_has_a_role_and_no_other_has():
    keys = {*keys_of(PretrainConfig), *keys_of(FinetuneConfig)}

    assert [key for key in sorted(keys) if not {key, key.partition(".")[0]} & ROLES.keys()] == []
    others = [role for role in ROLES if not any(f"{k}.".startswith(f"{role}.") for k in keys)]
    assert others == ["data.workers"]  # of a part, whose keys its class decides


def test_a_key_below_another_has_its_role():
    assert role_of("sweep.trials") == Role.OTHERS
    assert role_of("loop.log_every") == Role.HYPERPARAMETER | Role.EXTENDS


@pytest.mark.parametrize("key", ["model.width", "streams.a.batch", "own", "own.below", "run"])
def test_what_is_not_known_may_change_what_a_run_learns(key):
    assert role_of(key) == LEARNS


def test_what_a_resume_changes_names_no_run_and_is_no_other_commands():
    assert not with_role(Role.EXTENDS) & with_role(Role.NAMES_RUN)
    assert not with_role(Role.EXTENDS) & with_role(Role.OTHERS)
    assert with_role(Role.NAMES_RUN) == {
        "resume", "run.dir", "run.root", "data_changed", "resume_strict"
    }  # fmt: skip
