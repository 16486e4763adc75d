import re
from functools import cache

import pytest

from transfer_cli.config import bounded_yaml, commands
from transfer_cli.config.describe import offered, options
from transfer_cli.config.flags import parse
from transfer_cli.config.help_text import command_help
from transfer_cli.config.locate import conf_dir

COMPOSING = {name: each for name, each in commands.ALL.items() if each.composes}
ABOUT = {f"{each.typed_as}": each for about in commands.ABOUT.values() for each in about.values()}
SHOWN = {
    **{name: (name, each) for name, each in COMPOSING.items()},
    **{name: (name.split()[1], each) for name, each in ABOUT.items()},
}


@cache
def help_of(typed, *words):
    name, command = SHOWN[typed]
    return str(command_help(name, command, parse(["--help", *words])))


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
def test_the_help_begins_with_what_is_changed_most_and_three_examples(typed):
    text = help_of(typed)
    command = SHOWN[typed][1]

    titles = re.findall(r"^(What is .*|Examples|What can .*):$", text, re.MULTILINE)
    assert titles[0].startswith("What is changed most")
    assert titles[1] == "Examples"
    assert text.splitlines()[3].startswith("What is changed most")
    assert 3 <= len(examples_of(typed)) <= 4
    assert 4 <= len(command.keys) <= 10
    assert all(f"  {line}" in text for line in examples_of(typed))


@pytest.mark.parametrize("typed", SHOWN)
def test_the_help_fits_two_screens(typed):
    assert fits(help_of(typed))


@pytest.mark.parametrize("name", [name for name, each in commands.ALL.items() if not each.composes])
def test_the_help_of_a_command_without_a_config_fits_too(name):
    text = str(commands.about(name))

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
    for option in offered(name, command):
        if option.group in ("adaptation", "data", "model", "sweep", "objective"):
            assert fits(help_of(typed, f"{option.group}={option.name}")), option


def test_what_has_no_room_is_counted():
    text = help_of("pretrain", "model=tiny", "optimizer=muon", "data=text", "sweep=lr")

    assert re.search(r"^  \.\.\. \d+ more: --help all$", text, re.MULTILINE)
    assert fits(text)


@pytest.mark.parametrize("typed", SHOWN)
def test_a_group_has_one_line_with_its_default_starred(typed):
    name, command = SHOWN[typed]
    shown = help_of(typed).partition("What can be chosen")[2].splitlines()

    for group in {option.group for option in offered(name, command)}:
        lines = [line for line in shown if line.startswith(f"  {group}=")]
        assert len(lines) <= 1


def test_the_default_stands_first():
    assert re.search(r"^  model= +\*base, bert-base, ", help_of("pretrain"), re.MULTILINE)


def test_models_are_offered_where_they_mean_something():
    assert "  with init=scratch       model=, tokenizer=\n" in help_of("finetune")
    assert "  model= " not in help_of("finetune")
    assert "  model= " in help_of("finetune", "init=scratch")
    assert "  model= " in help_of("pretrain")
    assert "  model= " not in help_of("pretrain", "init_from=runs/first")


def test_schemes_are_offered_where_there_is_something_to_adapt():
    assert "  adaptation= " not in help_of("pretrain")
    assert "  adaptation= " in help_of("pretrain", "init_from=runs/first")
    assert "  adaptation= " in help_of("finetune")


def test_the_keys_of_what_is_chosen_are_shown():
    text = help_of("finetune", "data=table", "adaptation=lora")

    assert re.search(r"^  data\.train=\(needed\) +a file, or hf:", text, re.MULTILINE)
    assert "  adaptation.edits.lora.rank=8    r, the rank of an update\n" in text
    assert "data.label=" not in help_of("finetune").partition("What can be")[2]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["adaptation/plan=top_k"], "adaptation.plan.count=2"),
        (["+adaptation/edits=[scalar_mix]"], "adaptation.edits.scalar_mix."),
        (["+objective@losses.lm=mlm"], "losses.lm.rate=0.15"),
        (["+data@streams.more.data=text"], "streams.more.data.train=(needed)"),
        (["data=trec6,table", "-m"], "data.fine=false"),
        (["adaptation=lora", "nonsense=1"], "adaptation.edits.lora.rank=8"),
    ],
)
def test_the_keys_of_a_part_are_shown_however_it_is_chosen(words, key):
    assert f"\n  {key}" in help_of("finetune", *words)


def test_the_help_lists_own_options(own):
    short = help_of("pretrain", "--config-dir", str(own))
    text = help_of("pretrain", "all", "--config-dir", str(own))

    assert "*base, huge, " in short
    assert "Too large for you" in text
    assert "Smaller than ours" not in text


def test_the_help_shows_values_under_the_overrides_given():
    assert "loop.batch=7 " in help_of("pretrain", "loop.batch=7")


def test_the_help_shows_in_spite_of_wrong_overrides():
    assert "transfer pretrain" in help_of("pretrain", "nonsense=1")


def test_a_wrong_option_has_no_keys():
    assert "Keys of" not in help_of("finetune", "data=tabel")


def test_the_usage_speaks_of_options_where_there_are_some():
    assert "transfer evaluate RUN FILE [GROUP=OPTION ...] [KEY=VALUE ...]" in help_of("evaluate")
    assert "transfer predict RUN FILE [KEY=VALUE ...] [FLAGS]\n" in help_of("predict")


def test_a_plan_has_its_own_examples_and_keys():
    text = help_of("plan finetune")

    assert text.startswith("transfer plan finetune: show what a run would train")
    assert "  plan.steps=null " in text
    assert "run.dir" not in text


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

    for option in offered(name, command):
        if f"\n  {option.group}=" in text and option.group not in ("experiment", "sweep"):
            assert re.search(rf"^  [* ] {option.name}\b", text, re.MULTILINE), option


def test_keys_that_a_command_ignores_are_not_listed():
    assert "plan.steps" not in help_of("finetune", "all")
    assert "plan.steps" in help_of("plan finetune", "all")
    assert "lr_find" not in help_of("plan finetune", "all")
    assert "lr_find.start" in help_of("lr-find finetune", "all")


@pytest.mark.parametrize("words", [["--help", "all"], ["--help=all"], ["all", "-h"]])
def test_all_is_asked_for_in_several_ways(words):
    found = parse(["data=table", *words])

    assert (found.asks_help, found.asks_all, found.overrides) == (True, True, ("data=table",))


def test_every_option_is_of_a_group_that_some_command_takes():
    taken = {option.group for name, each in COMPOSING.items() for option in offered(name, each)}

    assert {option.group for option in options()} == taken
