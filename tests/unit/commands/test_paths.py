"""Paths that were typed are looked at before anything that takes seconds to import."""

import subprocess
import sys

import pytest

from transfer_cli.commands.paths import check_paths
from transfer_cli.errors import TransferError

WRONG = [
    ("finetune", ["init_from=nope"], "init_from: there is no folder nope"),
    ("finetune", ["init_from='nope'"], "init_from: there is no folder nope"),
    ("finetune", ["init_from=here/nope"], "there is no folder here/nope; name a run"),
    ("finetune", ["init_from=file.txt"], "init_from: file.txt is a file"),
    ("finetune", ["resume=nope"], "resume: there is no folder nope"),
    ("pretrain", ["data.train=nope.txt"], "nope.txt does not exist"),
    ("pretrain", ["data.train=[file.txt,nope.txt]"], "nope.txt does not exist"),
    ("evaluate", ["run=nope"], "run: there is no folder nope"),
    ("evaluate", ["output=nope/a.json"], "output: there is no folder nope"),
    ("predict", ["run=[here,nope]"], "run: there is no folder nope"),
    ("predict", ["run=here", "input=nope.csv"], "nope.csv does not exist"),
    ("export", ["run=here", "to=here"], "to: here is there already"),
    ("predict", ["run=heer"], "checkpoints. Did you mean 'here'?"),
    ("predict", ["run='here,here'"], "several are written as a list, run=[A,B]"),
    ("predict", ["run=here", "input='Who is it ?'"], "there is no file 'Who is it ?'; texts come"),
    ("finetune", ["resume=heer"], "resume: there is no folder heer. Did you mean 'here'?"),
]

RIGHT = [
    ("finetune", ["init_from=hf:bert-base-uncased"]),
    ("finetune", ["init_from=${oc.env:MODEL}"]),
    ("finetune", ["init_from=here"]),
    ("finetune", ["init_from=null"]),
    ("finetune", ["init_from=nope", "init_from=here"]),
    ("finetune", ["init_from=gone", "data.train=gone", "resume=auto"]),
    ("pretrain", ["data.train='*.txt'"]),
    ("pretrain", ["data.train=hf:owner/name/train"]),
    ("finetune", ["data.train=here"]),
    ("finetune", ["data=hub", "data.name=owner/name", "data.test=test"]),
    ("finetune", ["data=trec6", "data.validation=0.2"]),
    ("predict", ["run=here", "input=/dev/null"]),
    ("predict", ["run=here", "input=-", "output=-", "resume=true"]),
    ("predict", ["run=here", "input=file.txt", "output=new.jsonl"]),
    ("export", ["run=here", "to=new"]),
]


@pytest.fixture
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "file.txt").write_text("text")


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize(("command", "words", "message"), WRONG)
def test_a_typo_in_a_path_is_refused(command, words, message):
    with pytest.raises(TransferError) as refused:
        check_paths(words, command, multirun=False)

    assert message in str(refused.value)


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize(("command", "words"), RIGHT)
def test_what_may_be_there_is_left_to_the_command(command, words):
    check_paths(words, command, multirun=False)


@pytest.mark.usefixtures("_place")
def test_in_a_sweep_each_value_is_looked_at():
    with pytest.raises(TransferError, match="there is no folder nope"):
        check_paths(["init_from=here,nope"], "finetune", multirun=True)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("bert-base-uncased", "type init_from=hf:bert-base-uncased"),
        ("google-bert/bert-base-uncased", "type init_from=hf:google-bert/bert-base-uncased"),
        ("here/run", ""),
        ("../qwx", ""),
        ("/no/run", ""),
    ],
)
@pytest.mark.usefixtures("_place")
def test_a_name_without_a_folder_is_answered_with_what_fetches_it(name, cure):
    with pytest.raises(TransferError) as refused:
        check_paths([f"init_from={name}"], "finetune", multirun=False)

    assert str(refused.value).endswith(cure or "one of its checkpoints")


def test_neither_torch_nor_hydra_is_imported_for_a_typo():
    code = (
        "import sys; from transfer_cli.cli import main; code = main(['predict', 'nope', 'x.csv']);"
        "sys.exit(9 if {'torch', 'hydra'} & set(sys.modules) else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 2, done.stderr
