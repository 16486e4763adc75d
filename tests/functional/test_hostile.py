"""A run directory or a folder of configs that a stranger made: used or refused, never obeyed."""

import json
import pickle
import resource
import shutil
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml

pytestmark = pytest.mark.functional

MIB = 2**20


@pytest.fixture
def refusal(transfer):
    """Return how to run what is refused; checks the form of the refusal and gives its line."""

    def call(*words):
        ended = transfer(*words)
        assert ended.code == 2, ended.err
        assert "Traceback" not in ended.err
        assert ended.err.isprintable() or "\x1b" not in ended.err
        return ended.err.splitlines()[-1]

    return call


@pytest.fixture
def stranger(short_run, tmp_path):
    """Return a copy of a pretrained run that a test may change."""
    return without_hashes(shutil.copytree(short_run, tmp_path / "stranger"))


@pytest.fixture
def labelled(finetuned, tmp_path):
    """Return a copy of a fine-tuned run that a test may change."""
    return without_hashes(shutil.copytree(finetuned, tmp_path / "labelled"))


def without_hashes(run):
    """Remove those of a finished model: whoever changes it on purpose would change them, too."""
    (run / "model" / "meta.json").unlink()
    return run


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """Return a file that appears when the package `evilpackage` is imported."""
    marker = tmp_path / "imported"
    package = tmp_path / "elsewhere"
    package.mkdir()
    (package / "evilpackage.py").write_text(
        f"open({str(marker)!r}, 'w').close()\n"
        "from transfer_cli.data.text import SampleText\n"
        "class Evil(SampleText):\n    'Harmless, in fact.'\n"
    )
    monkeypatch.syspath_prepend(package)
    monkeypatch.setattr("transfer_cli.config.build._plugins", set())
    yield marker
    sys.modules.pop("evilpackage", None)


@pytest.fixture
def from_run(loop):
    """Return how to write the command line that fine-tunes from a place."""
    return lambda place, *more: (
        "finetune", "data=sample_questions", f"init_from={place}", *loop, "loop.steps=2",
        "run.dir=run", *more,
    )  # fmt: skip


def set_value(file: Path, key: str, value: object) -> None:
    """Change one value of a YAML or JSON file."""
    is_json = file.suffix == ".json"
    content = json.loads(file.read_text()) if is_json else yaml.safe_load(file.read_text())
    *parents, name = key.split(".")
    node = content
    for parent in parents:
        node = node[parent]
    node[name] = value
    file.write_text(json.dumps(content) if is_json else yaml.safe_dump(content))


@contextmanager
def memory_left(size_bytes: int):
    """Let the process take so much more memory, and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return Path.touch, (self._marker,)


# --- what a run directory asks to build --------------------------------------------------------

PARTS = {
    "data": {"_target_": "evilpackage.Evil"},
    "optimizer": {"_target_": "evilpackage.Evil", "lr": 0.1},
    "schedule": {"_target_": "evilpackage.Evil"},
    "adaptation.plan": {"_target_": "evilpackage.Evil"},
    "adaptation.edits": {"evil": {"_target_": "evilpackage.Evil"}},
    "objective": {"_target_": "evilpackage.Evil"},
    "data.length": {"_target_": "evilpackage.Evil"},
    "losses": {"evil": {"_target_": "evilpackage.Evil"}},
}


@pytest.mark.parametrize("key", PARTS)
def test_a_resumed_config_builds_nothing_of_other_packages(refusal, stranger, evil, key):
    set_value(stranger / "config.yaml", key, PARTS[key])

    line = refusal("pretrain", f"resume={stranger}", "loop.steps=8")

    assert "evilpackage.Evil is not trusted. Name your package with --plugin" in line
    assert not evil.exists()
    assert "evilpackage" not in sys.modules


def test_a_scored_config_builds_nothing_of_other_packages(refusal, stranger, evil):
    set_value(stranger / "config.yaml", "data", PARTS["data"])

    line = refusal("evaluate", f"run={stranger}", "device=cpu")

    assert line.startswith("transfer evaluate: data: evilpackage.Evil is not trusted.")
    assert not evil.exists()


def test_pretraining_that_is_gone_back_to_builds_nothing_of_other_packages(
    refusal, stranger, from_run, evil
):
    set_value(stranger / "config.yaml", "data", PARTS["data"])

    line = refusal(*from_run(stranger, "forgetting.data=source"))

    assert "evilpackage.Evil is not trusted." in line
    assert not evil.exists()


@pytest.mark.parametrize("key", ["objective", "edits"])
@pytest.mark.parametrize("command", ["evaluate", "finetune"])
def test_a_model_description_builds_nothing_of_other_packages(
    refusal, transfer, labelled, from_run, evil, key, command
):
    node = {"_target_": "evilpackage.Evil"}
    set_value(labelled / "model" / "model.json", key, {"x": node} if key == "edits" else node)
    words = from_run(labelled) if command == "finetune" else ("evaluate", f"run={labelled}")

    if (command, key) == ("finetune", "objective"):
        assert transfer(*words).code == 0  # which builds its own objective
    else:
        assert "evilpackage.Evil is not trusted." in refusal(*words)
    assert not evil.exists()


def test_the_package_may_be_named_on_the_command_line(transfer, stranger, evil):
    set_value(stranger / "config.yaml", "data", {**PARTS["data"], "length": 32})

    words = ("split=validation", "data.changed=accept", "--plugin", "evilpackage")
    ended = transfer("evaluate", f"run={stranger}", *words)

    assert ended.code == 0, ended.err
    assert evil.exists()


@pytest.mark.parametrize(
    "node",
    [
        {"_target_": "transfer_cli.runs.sweep.SweepDirectory", "path": "precious"},
        {"_target_": "transfer_cli.runs.tensorboard.SummaryWriter", "folder": "made"},
        {"_target_": "transfer_cli.runs.directory.RunDirectory", "path": "made"},
        {"_target_": "transfer_cli.tasks.table.Table", "train": {"_target_": "os.system"}},
        {"_target_": "transfer_cli.data.text.TextFiles", "train": ["precious"], "_args_": [1]},
        {"_target_": "transfer_cli.data.text.SampleText", "_partial_": True},
        {"_target_": "transfer_cli.cli.os.system", "command": "touch made"},
    ],
)
def test_a_config_makes_nothing_of_ours_that_has_an_effect(refusal, stranger, tmp_path, node):
    (tmp_path / "precious").write_text("all that I have\n")
    set_value(stranger / "config.yaml", "data", node)

    refusal("evaluate", f"run={stranger}", "device=cpu")

    assert (tmp_path / "precious").read_text() == "all that I have\n"
    assert not (tmp_path / "made").exists()


def test_a_config_does_not_read_the_environment(refusal, stranger, monkeypatch):
    monkeypatch.setenv("SECRET", "swordfish")
    node = {"_target_": "transfer_cli.data.text.TextFiles", "train": "${oc.env:SECRET}"}
    set_value(stranger / "config.yaml", "data", node)

    line = refusal("evaluate", f"run={stranger}", "device=cpu")

    assert "${oc.env:SECRET} does not exist." in line
    assert "swordfish" not in line


# --- what is absurd ----------------------------------------------------------------------------

LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize("content", [LAUGHS, "[" * 100_000, "a: \0", "x" * (2 * MIB)])
def test_a_config_that_would_take_all_memory_is_refused(refusal, stranger, content):
    (stranger / "config.yaml").write_text(content)

    with memory_left(512 * MIB):
        for words in (("evaluate", f"run={stranger}"), ("pretrain", f"resume={stranger}")):
            assert "config.yaml is no config of pretrain: " in refusal(*words)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape.width", 2**20),
        ("shape.feedforward", 2**24),
        ("shape.depth", 9_000),
        ("shape.output_transform", True),
        ("objective.hidden", [2**24]),
        ("objective.pooling", "concat"),
        ("edits", {"x": {"_target_": "transfer_cli.adaptation.edits.Adapters", "size": 2**30}}),
        ("edits", {"x": {"_target_": "transfer_cli.adaptation.edits.LoRA", "rank": 2**30}}),
        ("edits", {"x": {"_target_": "transfer_cli.adaptation.edits.LoRA", "rank": 2**62}}),
    ],
)
def test_a_description_of_more_than_the_weights_hold_takes_no_memory(
    refusal, labelled, key, value, tmp_path
):
    set_value(labelled / "model" / "model.json", key, value)
    (tmp_path / "in.txt").write_bytes(b"\xff")

    with memory_left(1024 * MIB):
        line = refusal("predict", f"run={labelled}", f"input={tmp_path / 'in.txt'}", "device=cpu")

    if key == "shape.output_transform":
        assert "byte 0xFF" in line  # nothing in a classifier depends on it
    else:
        found = ("does not fill this model's backbone", " lacks ", "out of memory")
        assert any(each in line for each in found)


def test_models_that_refer_to_each_other_in_a_circle_are_refused(refusal, labelled, stranger):
    base = {"path": str(labelled), "relative": "..", "hash": "0" * 32}
    set_value(labelled / "model" / "model.json", "base", base)

    assert "20 models that each refer to another" in refusal("evaluate", f"run={labelled}")


@pytest.mark.parametrize("name", ["environment.json", "presets.json", "status.json"])
@pytest.mark.parametrize("content", ["[]", "[" * 100_000, '{"command": [1]}'])
def test_a_damaged_small_file_is_no_traceback(transfer, stranger, name, content):
    (stranger / name).write_text(content)

    for words in (("evaluate", f"run={stranger}"), ("pretrain", f"resume={stranger}")):
        ended = transfer(*words, "device=cpu")
        assert ended.code in (0, 2), ended.err
        assert "Traceback" not in ended.err


def test_a_name_in_a_file_does_not_steer_the_terminal(refusal, labelled):
    set_value(labelled / "model" / "model.json", "labels", ["\x1b]0;pwned\x07\x1b[2J", "b"])

    line = refusal("evaluate", f"run={labelled}")

    assert "\x1b" not in line


# --- pickles -----------------------------------------------------------------------------------


def replaced_state(run: Path, content: bytes) -> Path:
    """Put something in place of the newest training state, and let its list agree."""
    import hashlib

    folder = sorted((run / "checkpoints").glob("step-*"))[-1]
    (folder / "train_state.pt").write_bytes(content)
    meta = json.loads((folder / "meta.json").read_text())
    digest = hashlib.blake2b(content, digest_size=32).hexdigest()
    meta["files"]["train_state.pt"] = {"bytes": len(content), "blake2b": digest}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


@pytest.mark.parametrize("kind", ["pickle", "torch", "old torch", "packed torch"])
def test_code_in_place_of_a_training_state_is_not_run(refusal, stranger, tmp_path, kind):
    marker, path = tmp_path / "marker", tmp_path / "made.pt"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Bomb(marker)))
    else:
        torch.save({"step": Bomb(marker)}, path, _use_new_zipfile_serialization=kind != "old torch")
    if kind == "packed torch":
        whole, path = path, tmp_path / "packed.pt"
        with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w") as new:
            for member in old.infolist():
                content = old.read(member)
                new.writestr(member.filename, content, compress_type=zipfile.ZIP_DEFLATED)
    replaced_state(stranger, path.read_bytes())

    line = refusal("pretrain", f"resume={stranger}", "loop.steps=8")

    assert "train_state.pt is damaged or holds more than plain values" in line
    assert not marker.exists()


def test_a_training_state_of_something_else_is_refused_by_its_name(refusal, stranger, tmp_path):
    for state in ({}, {"progress": {"step": "x"}, "step": {}}, {"progress": 3}):
        torch.save(state, tmp_path / "made.pt")
        replaced_state(stranger, (tmp_path / "made.pt").read_bytes())

        line = refusal("pretrain", f"resume={stranger}", "loop.steps=8")

        assert "train_state.pt does not fit this run" in line


# --- a folder of configs -----------------------------------------------------------------------

COPIES = {"_target_": "shutil.copyfile", "src": "secret", "dst": "stolen"}

HYDRA = {
    "callback": {"callbacks": {"x": COPIES}},
    "nested callback": {
        "callbacks": {"x": {"_target_": "hydra.experimental.callbacks.Callback", "y": COPIES}}
    },
    "hidden callback": {
        "callbacks": {"x": {"_target_": "hydra.experimental.callbacks.${z}", "y": "${evil}"}}
    },
    "logging": {
        "job_logging": {
            "version": 1,
            "handlers": {"x": {"()": "shutil.copyfile", "src": "secret", "dst": "stolen"}},
            "root": {"handlers": ["x"], "level": "INFO"},
        }
    },
    "environment": {"job": {"env_set": {"LD_PRELOAD": "evil.so"}}},
}


@pytest.mark.parametrize("kind", HYDRA)
@pytest.mark.parametrize(
    "as_sweep", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["run", "sweep"]
)
def test_a_folder_of_configs_has_hydra_run_nothing(transfer, tmp_path, tiny, loop, kind, as_sweep):
    (tmp_path / "secret").write_text("mine")
    folder = tmp_path / "own" / "experiment"
    folder.mkdir(parents=True)
    text = yaml.safe_dump({"hydra": HYDRA[kind], "seed": 3})
    (folder / "evil.yaml").write_text(f"# @package _global_\n{text}")
    words = ("pretrain", "--config-dir", "own", "data=sample_text", *tiny, *loop, "loop.steps=1")

    sweep = ("-m", "seed=1,2") if as_sweep else ("run.dir=run",)
    if as_sweep and kind == "logging":  # the jobs run, so let them share this process
        sweep += ("sweep.isolate=false",)
    ended = transfer(*words, "experiment=evil", *sweep)

    assert not (tmp_path / "stolen").exists()
    if kind == "logging":
        assert ended.code == 0, ended.err  # which is left out, as all logging of Hydra's
    else:
        assert ended.code == (5 if as_sweep and kind == "environment" else 2), ended.err
        assert "hydra." in ended.err
        assert "Traceback" not in ended.err


@pytest.mark.parametrize("part", ["launcher", "sweeper"])
def test_what_is_nested_in_settings_of_hydras_own_parts_is_not_made(
    refusal, tmp_path, tiny, loop, part
):
    (tmp_path / "secret").write_text("mine")
    group = tmp_path / "own" / "hydra" / part
    group.mkdir(parents=True)
    module = f"hydra._internal.core_plugins.basic_{part}"
    node = {"_target_": f"{module}.Basic{part.title()}", "params": {"x": COPIES}}
    (group / "mine.yaml").write_text(yaml.safe_dump(node))

    line = refusal(
        "pretrain", "--config-dir", "own", "data=sample_text", *tiny, *loop, "loop.steps=1", "-m",
        "seed=1,2", f"hydra/{part}=mine",
    )  # fmt: skip

    assert f"hydra.{part}.params: shutil.copyfile is not trusted." in line
    assert not (tmp_path / "stolen").exists()


def test_a_callback_of_a_package_that_the_command_line_names_is_called(
    transfer, tmp_path, tiny, loop, monkeypatch
):
    monkeypatch.setattr("transfer_cli.config.build._plugins", set())
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mycallbacks.py").write_text(
        "from hydra.experimental.callback import Callback\n"
        "class Mine(Callback):\n"
        "    def on_run_start(self, config, **_):\n"
        "        open('called', 'w').close()\n"
    )
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    text = yaml.safe_dump({"hydra": {"callbacks": {"x": {"_target_": "mycallbacks.Mine"}}}})
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}")

    ended = transfer(
        "pretrain", "--config-dir", "own", "--plugin", "mycallbacks", "data=sample_text",
        "experiment=mine", *tiny, *loop, "loop.steps=1", "run.dir=run",
    )  # fmt: skip

    assert ended.code == 0, ended.err
    assert (tmp_path / "called").exists()


def test_an_explosive_config_is_refused_whatever_is_asked(refusal, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "bomb.yaml").write_text(LAUGHS)

    with memory_left(512 * MIB):
        for words in (
            ("pretrain", "--config-dir", "own", "--config-name", "bomb"),
            ("pretrain", "--config-dir", "own", "--help"),
            ("presets", "--config-dir", "own"),
        ):
            assert "own/bomb.yaml cannot be a config: line 6: more than" in refusal(*words)


# --- links that lead out ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("analyze", "stranger", "analysis=attributions", "split=validation", "device=cpu"),
        ("finetune", "resume=stranger", "loop.steps=8", "device=cpu"),
    ],
)
def test_nothing_is_written_or_removed_where_a_link_in_a_run_leads(
    refusal, finetuned, tmp_path, words
):
    shutil.copytree(finetuned, tmp_path / "stranger")
    mine = tmp_path / "mine"
    mine.mkdir()
    files = {"attributions-notes.txt": "keep", "attributions.json": "{}"}
    for name, text in files.items():
        (mine / name).write_text(text)
    (tmp_path / "stranger" / "analyses").symlink_to(mine)

    line = refusal(*words)

    assert "stranger/analyses is a link that leads out of stranger" in line
    assert {path.name: path.read_text() for path in mine.iterdir()} == files


def test_versions_that_are_no_mapping_are_left_out_of_a_card(transfer, labelled, tmp_path):
    (labelled / "environment.json").write_text('{"versions": [1]}')

    ended = transfer("export", f"run={labelled}", "to=out")

    assert ended.code == 0, ended.err
    assert "versions" not in (tmp_path / "out" / "README.md").read_text()
