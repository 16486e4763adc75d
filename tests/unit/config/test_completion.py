import os
import shutil
import subprocess
import sys

import pytest

from transfer_cli.config import commands
from transfer_cli.config.commands import CHOICES
from transfer_cli.config.completion import SCRIPTS, completions
from transfer_cli.config.compose import compose
from transfer_cli.config.describe import declared, key_help, options
from transfer_cli.config.flags import Request
from transfer_cli.config.help_text import _Keys


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
        ("transfer presets model sch", "schedule"),
        ("transfer presets --j", "--json"),
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
        ("transfer export format=", "format=hf format=onnx"),
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
    ],
)  # fmt: skip
def test_a_line_is_completed(line, expected, folder):
    assert set(completions(line)) == set(expected.split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
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
)
def test_files_and_runs_are_completed(line, expected, folder):
    assert set(completions(line)) == set(expected.split())


def test_own_options_are_completed(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("# My own\nwidth: 1\n")

    found = completions(f"transfer pretrain --config-dir {tmp_path} model=mi")

    assert found == {"model=mine": "My own"}


@pytest.mark.parametrize("name", ["a b", "a;id", "a$(id)", "a\x1b[2J", "a\nb", "a'", "a\udcff"])
def test_a_name_that_a_shell_or_terminal_would_obey_is_not_offered(name, folder):
    (folder / name).touch()
    (folder / "own" / "model").mkdir(parents=True)
    (folder / "own" / "model" / f"{name}.yaml").write_text("# It\nwidth: 1\n")

    assert not completions("transfer predict runs/finetune/one a")
    assert not completions("transfer pretrain --config-dir own model=a")


@pytest.mark.parametrize("name", [name for name, each in commands.ALL.items() if each.composes])
def test_every_key_of_a_config_is_offered_and_no_other(name):
    command = commands.ALL[name]
    config = compose(name, Request(), return_hydra_config=True)
    keys = _Keys(name, Request(), config).all()
    wanted = {key for key in keys if not key.startswith(command.ignores)}

    found = set()
    for key in wanted:
        start = commands.SPOKEN.get(key, key).rpartition(".")[0]
        found |= set(completions(f"transfer {name} {f'{start}.' if start else ''}"))

    spoken = {f"{commands.SPOKEN.get(key, key)}=" for key in wanted}
    assert spoken <= found
    more = {key for key in found - spoken if key.endswith("=") and "." in key}
    assert more <= {"data.changed=", "resume.strict=", "sweep.over="}


def test_the_words_of_a_key_are_those_that_its_meaning_names():
    keys = [key for name in ("predict", "evaluate", "finetune", "export", "score")
            for key in declared(name).values()]  # fmt: skip
    keys += [key for option in options() for key in option.typed_keys()]
    said: dict[str, str] = {}
    for key in keys:
        spoken = commands.SPOKEN.get(key.name, key.name)
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
