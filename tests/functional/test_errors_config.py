"""What a mistake in a command line or a config gets: one line with cause and cure, exit code 2."""

import pytest

from transfer_cli.cli import main

pytestmark = pytest.mark.functional

MISTAKES = {
    # keys and groups
    "optimizer.lrr=1": "optimizer.lrr: no such key in optimizer. Did you mean 'lr'?",
    "opitmizer.lr=1": "opitmizer.lr: no such key. Did you mean 'optimizer.lr'?",
    "loop.epoch=1": "loop.epoch: no such key in loop. Did you mean 'epochs'?",
    "+loop.epoch=1": "loop.epoch: no such key in loop. Did you mean 'epochs'?",
    "modle=tiny": "modle: no such key. Did you mean 'model'?",
    "model=tinny": "model=tinny: no such option. Did you mean 'tiny'?",
    "adaptation/plan=head": "adaptation/plan=head: no such option. Did you mean 'head_only'?",
    "+objective@losses.lm=clmm": "objective=clmm: no such option. Did you mean 'clm'?",
    "+objectiv@losses.lm=clm": "objectiv: no such group. Did you mean 'objective'?",
    "adaptation/plans=all": "adaptation/plans: no such group. Did you mean 'adaptation/plan'?",
    "objective@losses.lm=clm": "write +objective@losses.lm=clm",
    "lr=1": "lr: no such key. Did you mean 'optimizer.lr'?",
    "epoch=3": "epoch: no such key. Did you mean 'loop.epochs'?",
    "batch=8": "batch: no such key. Did you mean 'loop.batch'?",
    "dropout=0": "dropout: no such key. Did you mean 'objective.dropout'?",
    "train=x.csv": "train: no such key. Did you mean 'data.train'?",
    "lora.rank=4": "lora.rank: no such key. Did you mean 'adaptation.edits.lora.rank'?",
    "batch_size=8": "batch_size: no such key. Did you mean 'loop.batch'?",
    "fp16=true": "fp16: no such key. Did you mean 'precision=fp16'?",
    "foo=1": "foo: no such key.\n",
    "+model=tiny": "+model: is chosen already; drop the + to choose another",
    "++model=tiny": "++model=tiny: drop the ++",
    "+optimizer.lr=1": "+optimizer.lr: exists already; drop the + to change it",
    "experiment=naacl": "experiment=naacl",
    "+experiment=naacl": "experiment",
    "optimizer.amsgrad=true": "is given as +optimizer.amsgrad=VALUE",
    "~nothing": "~nothing: no such key",
    "~loop.batch": "~loop.batch: cannot be left out",
    "objective=null": "to leave the group out write ~objective",
    # values
    "loop.batch=many": "loop.batch: expected a whole number, got 'many'",
    "loop.batch=1.5": "loop.batch: expected a whole number, got 1.5",
    "loop.batch=null": "loop.batch: needs a value, got null",
    "loop.epochs=[1]": "loop.epochs=[1]: expected one value, not a list; write loop.epochs=1",
    "loop.batch=[8,16]": "for one after the other type -m loop.batch=8,16",
    "model=[tiny,toy]": "for one after the other type -m model=tiny,toy",
    "devices=[0,1]": "write how many, or auto",
    "devices=all": "devices: expected auto or a whole number, got 'all'",
    "init_from=nowhere": "type init_from=hf:nowhere\n",
    "init_from=a,b": "init_from=a,b: several values need -m (one run for each)\n",
    "optimizer.momentum=1": "optimizer=muon, optimizer=sgd have it",
    "optimizer.learning_rate=1": "Did you mean 'optimizer.lr'?",
    "optim.lr=1": "Did you mean 'optimizer.lr'?",
    "objective=MLM": "objective=MLM: no such option. Did you mean 'mlm'?",
    "lr": "lr: expected KEY=VALUE or a flag. Did you mean 'optimizer.lr'?",
    "sample_text": "Did you mean 'data=sample_text'?",
    "--do_train": "--do_train: no such flag.\n",
    "loop=3": "loop: is a group of keys, got 3; set loop.KEY=VALUE",
    "seed=true": "seed: expected a whole number, got True",
    "run.dir=": "run.dir: has no value",
    "run.dir=${nothing}": "run.dir: cannot be filled in: Interpolation key 'nothing' not found",
    "data=table": "data.train: needs a value. Add data.train=VALUE",
    "run.dir='~nobody_of_that_name'": "a path begins with ~ and the name of nobody on this machine",
    # grammar
    "seed=1,2": "seed=1,2: several values need -m",
    "model=tiny,small": "model=tiny,small: several values need -m",
    "seed=range(1,3)": "seed=range(1,3): several values need -m",
    "init_from=a=b.pt": """'init_from="a=b.pt"'""",
    "run.dir=a(b": """'run.dir="a(b"'""",
    "init_from": "init_from: expected KEY=VALUE or a flag",
    "=3": "=3: expected KEY=VALUE",
    # flags
    "--cnfig-dir": "--cnfig-dir: no such flag. Did you mean '--config-dir'?",
    "--lr=1": "are typed KEY=VALUE, without dashes. Did you mean 'optimizer.lr'?",
    "--data": "are typed KEY=VALUE, without dashes. Did you mean 'data'?",
    "--output-dir": "Keys are typed KEY=VALUE, without dashes. Did you mean 'run.dir'?",
    "--zzz": "--zzz: no such flag.\n",
    "--config-dir=nowhere": "--config-dir: there is no folder",
    "--config-name=nothing": "--config-name: there is no nothing.yaml",
    "--config-name=model/tiny": "begin the defaults of your own with `- finetune`",
    "--plugin=surely_not_installed": "--plugin surely_not_installed: no such package",
}

BROKEN_FILES = {
    "flow": ("a: [1,\n b: }\n", "model/own.yaml, line 3, column 5: broken YAML"),
    "tab": ("a:\n\tb: 1\n", "model/own.yaml, line 3, column 1: broken YAML"),
    "twice": ("a: 1\na: 2\n", "model/own.yaml, line 3, column 1: broken YAML: found duplicate key"),
    "boolean": ("defaults: [{/optimizer@x: on}]\n", "which YAML reads as a boolean"),
    "option": (
        "defaults: [{/optimizer@x: adam}]\n",
        "optimizer=adam: no such option (in model/own.yaml). Did you mean 'adamw'?",
    ),
    "interpolation": ("width: ${nothing}\n", "model.width: cannot be filled in"),
    "half_interpolation": ("width: ${nothing\n", "width: cannot be filled in"),
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refusal(capsys, *words):
    code = main(list(words))
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_on_the_command_line(capsys, tmp_path, mistake):
    err = refusal(capsys, "finetune", mistake)

    assert err.startswith("transfer finetune: ")
    assert MISTAKES[mistake] in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_a_mistake_in_an_option_of_ones_own(capsys, tmp_path, name):
    text, message = BROKEN_FILES[name]
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "own.yaml").write_text(f"# Mine\n{text}")

    assert message in refusal(capsys, "finetune", "--config-dir", "own", "model=own")


def test_a_config_that_is_not_utf8(capsys, tmp_path):
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "own.yaml").write_bytes(b"# Mine\nname: caf\xe9\n")

    err = refusal(capsys, "finetune", "--config-dir", "own", "model=own")

    assert "own/model/own.yaml: line 2 is not UTF-8 (byte 0xE9)" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loop: {epoch: 3}\n", "loop.epoch: no such key in loop (in start.yaml). Did you mean"),
        ("loop: {epochs: few}\n", "loop.epochs: expected a number, got 'few' (in start.yaml)"),
    ],
)
def test_a_mistake_in_a_primary_config_of_ones_own(capsys, tmp_path, text, message):
    (tmp_path / "start.yaml").write_text(f"# Mine\ndefaults: [finetune, _self_]\n{text}")

    err = refusal(capsys, "finetune", "--config-dir", ".", "--config-name", "start")

    assert message in err


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("predict", ["model=tiny"], "model: predict takes none"),
        ("predict", [], "run: needs a value. Add run=VALUE"),
        ("evaluate", ["run=.", "loop.batch=1"], "loop.batch: no such key."),
        ("inspect", ["samples=few"], "samples: expected a whole number, got 'few'"),
        ("pretrain", ["-m", "seed=1,2", "loop.batch=x"], "loop.batch: expected a whole number"),
        ("pretrain", ["--cfg", "job", "-m"], "-m: what is shown is the config of one run"),
    ],
)
def test_a_mistake_with_another_command(capsys, command, words, message):
    err = refusal(capsys, command, *words)

    assert err.startswith(f"transfer {command}: ")
    assert message in err


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE", "MASTER_PORT", "OMP_NUM_THREADS"])
def test_nonsense_in_the_environment_is_a_mistake_like_any(variable, monkeypatch, capsys):
    monkeypatch.setenv(variable, "x")

    assert main(["pretrain", "data=sample_text"]) == 2
    assert capsys.readouterr().err.startswith(f"transfer pretrain: {variable}: 'x' in the")
