import dataclasses
import os
import re
import shutil
import subprocess
import sys
from functools import cache

import pytest

from transfer_cli.cli import main
from transfer_cli.config import bounded_yaml, commands
from transfer_cli.config.commands import CHOICES
from transfer_cli.config.completion import SCRIPTS, completions
from transfer_cli.config.compose import load_config
from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.describe import (
    OWN,
    Choice,
    declared_keys,
    description,
    key_help,
    keys_and_options,
    keys_in,
    options,
    options_for,
)
from transfer_cli.config.flags import Request, parse_request
from transfer_cli.config.help_text import _Keys, command_help
from transfer_cli.config.roles import LEARNS, ROLES, Role, role_of
from transfer_cli.config.schema import COMMANDS, FinetuneConfig, PretrainConfig
from transfer_cli.config.suggest import options_with, other_words, suggest_key

COMPOSING = {name: command for name, command in commands.ALL.items() if command.composes}


def names_of(command, group, **how):
    offers = options_for(command, commands.ALL[command], **how)
    return [option.name for option in offers if option.group == group]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"# @package _global_\n#\n# What it is\nwidth: 1\n# later\n", "What it is"),
        (b"width: 1\n# later\n", ""),
        (b"# Gr\xf6\xdfe\nwidth: 1\n", "Gr\ufffd\ufffde"),
    ],
)
def test_the_description_is_the_first_comment_that_is_no_instruction(tmp_path, text, line):
    (tmp_path / "option.yaml").write_bytes(text)

    assert description(tmp_path / "option.yaml") == line


def test_own_options_are_listed_and_a_packaged_one_of_the_same_name_wins(own_folder):
    by_name = {option.name: option for option in options(own_folder) if option.origin == OWN}

    assert not by_name["huge"].shadowed
    assert by_name["tiny"].shadowed


# --- what means something ----------------------------------------------------------------------


def test_what_means_nothing_to_a_command_or_is_ruled_out_by_a_condition_is_hidden():
    assert "trec6" not in names_of("pretrain", "data")
    assert "wikitext103" not in names_of("finetune", "data")
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
    names = names_of(command, "experiment", without=without)

    assert set(expected.split()) <= set(names)
    assert not set(names) & ({"sample/pretrain"} if command == "finetune" else {"sample/finetune"})
    for name in names:
        load_config(command, Request(overrides=(f"experiment={name}",)))


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
    [ulmfit] = [o for o in options() if (o.group, o.name) == ("adaptation", "ulmfit")]

    assert list(ulmfit.choices()) == [
        Choice("adaptation", "", ("full",)),
        Choice("adaptation/plan", "adaptation.plan", ("gradual_unfreezing",)),
        Choice("adaptation/layer_scale", "adaptation.layer_scale", ("geometric_ulmfit",)),
        Choice("schedule", "schedule", ("slanted",)),
    ]


def test_an_included_file_is_no_option_and_its_keys_are_those_of_the_options(tmp_path):
    file = tmp_path / "data" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("# Mine\n_target_: a.B\ndefaults: [_rows, _own, _missing, _self_]\n")
    file.with_name("_own.yaml").write_text("# Included\nhue: 3  # of a text\n")
    mine = {option.name: option for option in options(tmp_path)}["mine"]

    keys = {key.name: key.line for key in mine.typed_keys()}

    assert keys["data.hue"] == "of a text"
    assert keys["data.header"].startswith("whether")
    assert not list(mine.choices())
    assert not [option.name for option in options(tmp_path) if option.name.startswith("_")]


def test_no_key_stands_in_a_file_and_in_one_that_it_includes():
    for option in options():
        names = [key.name for key in option.all_keys()]
        assert len(names) == len(set(names)), option.name


@pytest.mark.parametrize("name", COMPOSING)
def test_the_declared_keys_are_those_of_the_config(name):
    config = load_config(name, Request())

    assert {key.partition(".")[0] for key in declared_keys(name)} == set(map(str, config))


def test_a_command_may_say_more_of_a_key_than_others():
    assert "fine-tuned" in key_help("predict")["run"]
    assert key_help("predict")["device"] == key_help("finetune")["device"]


@pytest.fixture(scope="module")
def known():
    return {command: {key for key, _ in keys_and_options(command)} for command in COMMANDS}


@pytest.mark.parametrize("key", other_words("keys"))
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
        ("ema", "pretrain", " Did you mean 'loop.average=ema'?"),
        ("swa", "finetune", " Did you mean 'loop.average'?"),
        ("size", "finetune", ""),
        ("name", "finetune", " Did you mean 'data.name'?"),
        ("xyz.abc", "finetune", ""),
        ("", "finetune", ""),
        ("discriminative", "finetune", " Did you mean 'adaptation=discriminative'?"),
        ("cosine", "pretrain", " Did you mean 'schedule=cosine'?"),
        ("probes", "finetune", ""),
    ],
)
def test_only_keys_of_the_command_are_named(name, command, said):
    assert suggest_key(name, command) == said


TYPED = """
class_weights ema wandb loggers report_to push_to_hub quantization load_in_8bit threshold lora_r
lora_alpha learning_rate lr batch_size epochs num_train_epochs output_dir
gradient_accumulation_steps fp16 bf16 early_stopping max_length warmup_ratio seed_everything
model_name_or_path train_file freeze dropout optim scheduler eval_steps save_steps
resume_from_checkpoint gpus accelerator num_workers deepspeed compile weight_decay max_steps
label_smoothing num_labels cache_dir trust_remote_code llrd adapter peft kfold flash_attention
num_beams metrics loss shuffle padding val_split run_name callbacks deterministic
"""


@pytest.mark.parametrize("word", TYPED.split())
def test_a_word_of_other_programs_is_answered_in_one_line_with_what_there_is(capsys, word, known):
    assert main(["finetune", f"{word}=1"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    start = f"transfer finetune: {word}: no such key. "
    assert line.startswith(start)
    if meant := re.fullmatch(r"Did you mean '(.+)'\?", line.removeprefix(start)):
        assert meant[1].partition("=")[0] in known["finetune"]
    else:
        assert word in {word for words in other_words("absent").values() for word in words}


@pytest.mark.parametrize("section", ["commands", "absent"])
def test_each_word_is_answered_once_and_keys_in_answers_are_keys(section, known):
    words = [word for words in other_words(section).values() for word in words]
    every = {"sweep", *(key for keys in known.values() for key in keys)}

    assert len(words) == len(set(words))
    for line in other_words(section):
        assert not line.partition(" ")[0].count("="), "a key would get a capital"
        for key in re.findall(r"(?<![+@\w.])([a-z_.]+)=", line):
            assert key in every or key.startswith("losses.rdrop.")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("train first", "transfer finetune"), ("test first", "transfer evaluate"),
        ("server first", "transfer serve"), ("publish first", "transfer push"),
        ("quantize first", "transfer export"), ("pretrian first", "'pretrain'"),
        ("--epochs first", "--help"),
        # No answer leads back to what was typed.
        ("finetune seed", "type seed=VALUE"),
        ("finetune losses.lm.weight=0.2", "by +objective@losses.lm=OPTION"),
    ],
)  # fmt: skip
def test_a_verb_of_other_programs_is_answered_with_a_command(capsys, words, named):
    assert main(words.split()) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


def test_own_options_are_completed_and_their_keys_known(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("# My own\n_target_: a.B\nspread: 3\n")

    offers = completions(f"transfer pretrain --config-dir {tmp_path} model=mi")
    assert offers == {"model=mine": "My own"}
    assert suggest_key("spread", "pretrain", tmp_path) == " Did you mean 'model.spread'?"
    assert suggest_key("spread", "pretrain") == ""


def test_the_options_that_bring_a_key_are_named_but_not_those_of_other_commands():
    words = options_with("data.train", "finetune")
    assert {"data=choices", "data=numbers", "data=table"} <= {*words}
    assert "data=text" not in words
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


# --- help text -----------------------------------------------------------------------------------


SHOWN = {name: (name, command) for name, command in COMPOSING.items()}
for kinds in commands.SUBCOMMANDS.values():
    SHOWN |= {command.typed_as: (name, command) for name, command in kinds.items()}


@cache
def help_of(typed, *words):
    name, command = SHOWN[typed]
    return str(command_help(name, command, parse_request(["--help", *words])))


def fits(text):
    lines = text.splitlines()
    return len(lines) <= 80 and max(map(len, lines)) <= 100


def examples_of(typed):
    return [line for line, _ in commands.guide_of(typed.split()[0]).examples]


def test_every_command_has_a_guide_and_there_is_no_other():
    told = bounded_yaml.PARSER((conf_dir() / "commands.yaml").read_text()).get_single_data()

    assert list(told) == list(commands.ALL)


# --- the short text ----------------------------------------------------------------------------


@pytest.mark.parametrize("typed", SHOWN)
def test_the_help_begins_with_what_is_changed_most_and_three_examples_and_fits(typed):
    text = help_of(typed)

    assert text.splitlines()[3].startswith("What is changed most")
    titles = re.findall(r"^(What is .*|Examples|What can .*):$", text, re.MULTILINE)
    assert titles[1] == "Examples"
    assert 3 <= len(examples_of(typed)) <= 4
    assert 4 <= len(SHOWN[typed][1].keys) <= 10
    assert all(f"  {line}" in text for line in examples_of(typed))
    assert fits(text)


@pytest.mark.parametrize("name", sorted(commands.ALL.keys() - COMPOSING.keys()))
def test_the_help_of_a_command_without_a_config_fits_too(name):
    text = str(commands.help_page(name))

    assert fits(text)
    assert f"usage: transfer {name}" in text
    assert all(f"  {line}" in text for line in examples_of(name))


@pytest.mark.parametrize("word", ["data=table", "adaptation=adapters", "model=bert-large"])
def test_the_help_fits_with_the_keys_of_an_option(word):
    assert fits(help_of("finetune", "init=scratch", word))


@pytest.mark.slow
@pytest.mark.parametrize("typed", ["finetune", "pretrain"])
def test_the_help_fits_with_any_option(typed):
    name, command = SHOWN[typed]
    for option in options_for(name, command):
        if option.group in ("adaptation", "data", "model", "sweep", "objective"):
            assert fits(help_of(typed, f"{option.group}={option.name}")), option


def test_what_has_no_room_is_counted():
    text = help_of("pretrain", "model=tiny", "optimizer=muon", "data=text", "sweep=lr")

    assert re.search(r"^  \.\.\. \d+ more: --help all$", text, re.MULTILINE)
    assert fits(text)


@pytest.mark.parametrize("typed", SHOWN)
def test_a_group_has_one_line(typed):
    shown = help_of(typed).partition("What can be chosen")[2]
    groups = re.findall(r"^  ([\w/]+)= ", shown, re.MULTILINE)

    assert len(set(groups)) == len(groups)


def test_the_default_stands_first():
    assert re.search(r"^  model= +\*base, bert-base, ", help_of("pretrain"), re.MULTILINE)


HELP = {
    # Options, where they mean something.
    "finetune": (["  with init=scratch       model=, tokenizer=\n", "  adaptation= "],
                 ["  model= ", "Keys of"]),
    "finetune init=scratch": (["  model= "], []),
    "pretrain": (["  model= "], ["  adaptation= "]),
    "pretrain init_from=runs/first": (["  adaptation= "], ["  model= "]),
    # The keys of a part, however it is chosen.
    "finetune data=table": (["\n  data.train=(needed)             a file, folder, "], []),
    "finetune adaptation=lora":
        (["  adaptation.edits.lora.rank=8    r, the rank of an update\n"], []),
    "finetune adaptation/plan=top_k": (["\n  adaptation.plan.count=2"], []),
    "finetune +adaptation/edits=[scalar_mix]": (["\n  adaptation.edits.scalar_mix."], []),
    "finetune +objective@losses.lm=mlm": (["\n  losses.lm.rate=0.15"], []),
    "finetune +data@streams.more.data=text": (["\n  streams.more.data.train=(needed)"], []),
    "finetune data=trec6,table -m": (["\n  data.fine=false"], []),
    "finetune adaptation=lora nonsense=1": (["\n  adaptation.edits.lora.rank=8"], []),
    "finetune data=tabel": ([], ["Keys of"]),
    # What was typed, right or wrong.
    "pretrain loop.batch=7": (["loop.batch=7 "], []),
    "pretrain nonsense=1": (["transfer pretrain"], []),
    # The usage.
    "evaluate": (["transfer evaluate RUN FILE ... [GROUP=OPTION ...] [KEY=VALUE ...]"], []),
    "predict": (["transfer predict RUN FILE ... [KEY=VALUE ...] [FLAGS]\n"], []),
    # The keys that a command reads.
    "plan finetune": (["  plan.steps=null ", "transfer plan finetune: show what a run would train"],
                      ["run.dir"]),
    "plan finetune all": (["plan.steps"], ["lr_find"]),
    "finetune all": ([], ["plan.steps"]),
    "lr-find finetune all": (["lr_find.start"], []),
}  # fmt: skip


@pytest.mark.parametrize(("line", "has", "lacks"), [(line, *texts) for line, texts in HELP.items()])
def test_the_help_shows_what_means_something_with_what_is_typed(line, has, lacks):
    typed = max((name for name in SHOWN if f"{line} ".startswith(f"{name} ")), key=len)
    text = help_of(typed, *line.removeprefix(typed).split())

    assert [part for part in has if part not in text] == []
    assert [part for part in lacks if part in text] == []


def test_the_help_lists_own_options(own_folder):
    short = help_of("pretrain", "--config-dir", str(own_folder))
    text = help_of("pretrain", "all", "--config-dir", str(own_folder))

    assert "*base, huge, " in short
    assert "Too large for you" in text
    assert "Smaller than ours" not in text


# --- the whole of it ---------------------------------------------------------------------------


@pytest.mark.parametrize("typed", SHOWN)
def test_the_whole_help_says_what_every_key_means(typed):
    text = help_of(typed, "all")
    listed = text.partition("Every key")[2].partition("\n\n")[0].splitlines()[1:]

    assert max(map(len, text.splitlines())) <= 100
    for line, below in zip(listed, [*listed[1:], ""], strict=True):
        if line[2:3] != " ":
            assert re.search(r" {2}\S", line[3:]) or below.startswith(" " * 34), line


@pytest.mark.parametrize("typed", SHOWN)
def test_the_whole_help_names_every_option_that_makes_sense(typed):
    name, command = SHOWN[typed]
    text = help_of(typed, "all", *(["init=scratch"] if name == "finetune" else []))

    for option in options_for(name, command):
        if f"\n  {option.group}=" in text and option.group not in ("experiment", "sweep"):
            assert re.search(rf"^  [* ] {option.name}\b", text, re.MULTILINE), option


def test_every_option_is_of_a_group_that_some_command_takes():
    taken = {
        option.group for name, command in COMPOSING.items() for option in options_for(name, command)
    }

    assert {option.group for option in options()} == taken


# --- completion ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory: a run, two files, a name that would need quotes."""
    run = tmp_path / "runs" / "finetune" / "one"
    run.mkdir(parents=True)
    for name in ("status.json", "config.yaml"):
        (run / name).touch()
    for name in ("train.csv", "two words.csv", ".hidden"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("transfer fi", "finetune fill"),
        ("transfer plan ", "finetune pretrain"),
        ("transfer plan fi", "finetune"),
        ("transfer lr-find finetune schedule=cons", "schedule=constant"),
        ("transfer help gen", "generate"),
        ("transfer completion ", "bash zsh fish"),
        ("transfer presets adaptation/p", "adaptation/penalty adaptation/plan"),
        ("transfer finetune init_from=smol", "init_from=smollm2"),
        ("transfer presets model sch", "schedule"),
        ("transfer presets --j", "--json"),
        ("transfer presets --s", "--schema"),
        ("transfer init my --from schedule=c", "schedule=constant schedule=cosine"),
        ("transfer init my --from model=tiny tok", "tokenizer="),
        ("transfer finetune --info ", "defaults"),
        ("transfer finetune --config-", "--config-dir --config-name"),
        ("transfer plan finetune model=ti", "model=tiny"),
        ("transfer finetune model=base,ti", "model=base,tiny"),
        ("transfer finetune +adaptation/edits=[lora,sc", "+adaptation/edits=[lora,scalar_mix"),
        ("transfer finetune +objective@losses.lm=ml", "+objective@losses.lm=mlm"),
        ("transfer finetune objective=cla", "objective=classification"),
        ("transfer pretrain loop.b", "loop.batch= loop.bf16_residual= loop.bucket="),
        ("transfer pretrain loop.bucket=", "loop.bucket=true loop.bucket=false"),
        ("transfer pretrain loop.batch=", ""),
        ("transfer pretrain precision=b", "precision=bf16"),
        ("transfer predict resume=", "resume=true resume=false"),
        ("transfer predict format=t", "format=text format=tsv"),
        ("transfer export format=", "format=hf format=onnx format=peft format=gguf"),
        ("transfer finetune resume.", "resume.strict="),
        ("transfer finetune data=table data.lab", "data.label= data.labelled="),
        ("transfer finetune data=trec6 data.lab", "data.labelled="),
        ("transfer plan finetune adaptation=top_k adaptation.plan.", "adaptation.plan.count="),
        ("transfer finetune adaptation=ulmfit schedule.c", "schedule.cut="),
        ("transfer finetune +objective@losses.lm=mlm losses.lm.r", "losses.lm.rate="),
        ("transfer finetune +data@streams.x.data=text streams.x.data.tr", "streams.x.data.train="),
        ("transfer pretrain experiment=recipe/clm optimizer.mo", "optimizer.momentum="),
        ("transfer finetune lr_find", ""),
        ("transfer lr-find finetune lr_find.s", "lr_find.start= lr_find.steps="),
        ("transfer nonsense ", ""),
        ("transfer plan nonsense ", ""),
        ("transfer finetune 'data=", ""),
        # Files and runs.
        ("transfer finetune data.train=", "data.train=runs/ data.train=train.csv"),
        ("transfer predict runs/finetune/one tr", "train.csv"),
        ("transfer predict runs/f", "runs/finetune/"),
        ("transfer evaluate run=", "run=runs/ run=runs/finetune/one"),
        ("transfer finetune resume=runs/finetune/", "resume=runs/finetune/one"),
        ("transfer predict run=[runs/x,runs/f", "run=[runs/x,runs/finetune/"),
        ("transfer report ", "runs/ runs/finetune/one"),
        ("transfer report runs/x runs/f", "runs/finetune/"),
        ("transfer report runs --html t", "train.csv"),
        ("transfer diff runs/finetune/one ", "runs/ runs/finetune/one"),
        ("transfer diff a b ", ""),
        ("transfer finetune --config-dir r", "runs/"),
        ("transfer finetune init_from=nowhere/", ""),
        ("transfer generate runs/finetune/one 'a text' max", "max_tokens="),
    ],
)  # fmt: skip
def test_a_line_is_completed(line, expected, folder):
    assert set(completions(line)) == set(expected.split())


@pytest.mark.parametrize("name", ["a b", "a;id", "a$(id)", "a\x1b[2J", "a\nb", "a'", "a\udcff"])
def test_a_name_that_a_shell_or_terminal_would_obey_is_not_offered(name, folder):
    (folder / name).touch()
    (folder / "own" / "model").mkdir(parents=True)
    (folder / "own" / "model" / f"{name}.yaml").write_text("# It\nwidth: 1\n")

    assert not completions("transfer predict runs/finetune/one a")
    assert not completions("transfer pretrain --config-dir own model=a")


@pytest.mark.parametrize("name", COMPOSING)
def test_every_key_of_a_config_is_offered_and_no_other(name):
    config = load_config(name, Request(), keep_hydra=True)
    keys = _Keys(name, Request(), config).all()
    wanted = {key for key in keys if not key.startswith(COMPOSING[name].ignores)}

    offers = set()
    for key in wanted:
        start = commands.TYPED_KEYS.get(key, key).rpartition(".")[0]
        offers |= set(completions(f"transfer {name} {f'{start}.' if start else ''}"))

    spoken = {f"{commands.TYPED_KEYS.get(key, key)}=" for key in wanted}
    assert spoken <= offers
    more = {key for key in offers - spoken if key.endswith("=") and "." in key}
    assert more <= {"data.changed=", "resume.strict=", "sweep.over=", "sweep.published="}


def test_the_words_of_a_key_are_those_that_its_meaning_names():
    keys = [key for name in ("predict", "evaluate", "finetune", "export", "score")
            for key in declared_keys(name).values()]  # fmt: skip
    keys += [key for option in options() for key in option.typed_keys()]
    said: dict[str, str] = {}
    for key in keys:
        spoken = commands.TYPED_KEYS.get(key.name, key.name)
        said[spoken] = f"{said.get(spoken, '')} {key.line} {key.value}"

    for place, words in CHOICES.items():
        name, _, key = place.rpartition(" ")
        text = key_help(name)[key] if name else said[key]
        plain = words.removesuffix(" ...").split()
        assert [word for word in plain if word not in text] == [], place


# --- the shell ---------------------------------------------------------------------------------


@pytest.fixture
def transfer(tmp_path):
    """A folder with a command `transfer`."""
    command = tmp_path / "bin" / "transfer"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m transfer_cli "$@"\n')
    command.chmod(0o755)
    return command.parent


@pytest.mark.parametrize(
    ("line", "word", "expected"),
    [
        ("transfer fin", "fin", "finetune"),
        ("transfer finetune schedule=cons", "cons", "constant"),
        ("transfer finetune +objective@losses.x=ml", "ml", "mlm"),
        ("transfer finetune data=tr", "tr", "trec50 trec6"),
        ("transfer finetune optimizer=", "=", "adamw lbfgs muon sgd"),
    ],
)
def test_bash_is_given_what_stands_behind_its_word_breaks(line, word, expected, transfer):
    script = f"""
COMP_WORDBREAKS=$' \\t\\n"\\'@><=;|&(:' COMP_LINE='{line} and more' COMP_POINT={len(line)}
_transfer_complete transfer '{word}' ''
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", SCRIPTS["bash"] + script],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{transfer}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert set(done.stdout.split()) == set(expected.split()), done.stderr


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_is_one_that_its_shell_can_read(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")

    done = subprocess.run([shell, "-n"], input=SCRIPTS[shell], capture_output=True, text=True,
                          check=False)  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
