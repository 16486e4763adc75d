"""`transfer lr-find COMMAND`: a short run over a range of rates, and what it suggests."""

import contextlib
import csv
import io
import itertools
import re
import shlex
import sys

import pytest
import yaml

from transfer_cli.cli import main
from transfer_cli.commands import lr_find
from transfer_cli.errors import pip_install

STEPS = ("lr_find.steps=40", "lr_find.start=1e-5")

SAMPLE = ("data=sample_questions", "device=cpu", "loop.batch=32")


@pytest.fixture(scope="module")
def range_test(pretrained, tmp_path_factory):
    """Return the folder of a range test, and what it printed."""
    folder = tmp_path_factory.mktemp("range_test") / "rates"
    words = (*SAMPLE, *STEPS, f"init_from={pretrained}", "adaptation=discriminative")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["lr-find", "finetune", *words, f"run.dir={folder}"]) == 0
    return folder, out.getvalue()


@pytest.mark.slow
def test_the_folder_holds_the_curve_in_every_form(range_test, read_json):
    folder, _ = range_test

    assert sorted(path.name for path in folder.iterdir()) == [
        "curve.csv", "curve.png", "settings.yaml", "suggestion.json", "tensorboard",
    ]  # fmt: skip
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    rows = list(csv.DictReader((folder / "curve.csv").read_text().splitlines()))
    assert 10 <= len(rows) <= 40
    rates = [float(row["optimizer.lr"]) for row in rows]
    assert rates == sorted(rates)
    assert rates[0] > 1e-5
    assert rates[-1] <= 1.0
    assert yaml.safe_load((folder / "settings.yaml").read_text())["lr_find"]["steps"] == 40
    said = read_json(folder / "suggestion.json")
    assert said["steps"] == len(rows)
    assert rates[said["step"] - 1] == said["optimizer.lr"]
    assert rates[0] < said["optimizer.lr"] < rates[-1]


def test_each_layer_group_has_a_suggestion_at_its_own_scale(range_test, read_json):
    folder, out = range_test

    said = read_json(folder / "suggestion.json")
    rates = list(said["groups"].values())
    assert list(said["groups"]) == ["embeddings", "block.0", "head.class"]
    assert rates[-1] == pytest.approx(said["optimizer.lr"])
    steps = [upper / lower for lower, upper in itertools.pairwise(rates)]
    assert steps == pytest.approx([1.2, 1.2])
    for name, rate in said["groups"].items():
        assert f"  {name}: {rate:.2g}\n" in out


def test_tensorboard_has_the_picture_and_the_curve(range_test):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    folder, _ = range_test
    (file,) = (folder / "tensorboard").iterdir()
    reader, tags, picture = PyRecordReader_New(str(file)), [], b""
    while True:
        try:
            reader.GetNext()
        except Exception:  # the reader's way to say that there is no more
            break
        for value in Event.FromString(reader.record()).summary.value:
            tags.append(value.tag)
            if value.HasField("image"):
                picture = value.image.encoded_image_string
                assert value.image.width > value.image.height / 2 > 0

    assert picture == (folder / "curve.png").read_bytes()
    steps = len((folder / "curve.csv").read_text().splitlines()) - 1
    assert tags.count("lr_find/loss") == tags.count("lr_find/rate") == steps


def test_the_suggestion_is_printed_and_the_line_to_type_next(range_test, read_json):
    folder, out = range_test

    rate = read_json(folder / "suggestion.json")["optimizer.lr"]
    assert f"suggested: optimizer.lr={rate:.2g}, where the loss fell fastest" in out
    rows = csv.DictReader((folder / "curve.csv").read_text().splitlines())
    lowest = min(rows, key=lambda row: float(row["smoothed"]))
    assert f"it was lowest at {float(lowest['optimizer.lr']):.2g}, " in out
    stored = read_json(folder / "suggestion.json")["lowest"]
    assert stored["loss"] == float(lowest["smoothed"])
    line = re.search(r"  next +(.*)$", out, re.MULTILINE)[1]
    assert line.startswith("transfer finetune data=sample_questions")
    assert line.endswith(f" optimizer.lr={rate:.2g}")
    assert "lr_find" not in line
    assert "run.dir" not in line


def test_the_line_to_type_next_keeps_what_is_no_key_of_the_test():
    kept = ["seed=1", "+optimizer.lr_decay=0.1"]
    typed = [*kept, "optimizer.lr=1", "+run.dir=x", "lr_find.steps=9", "lr_find={end: 1}"]

    assert lr_find._kept_overrides(typed) == kept


def test_the_line_to_type_next_starts_a_run(range_test, transfer):
    line = re.search(r"  next +transfer (.*)$", range_test[1], re.MULTILINE)[1]

    transfer(*shlex.split(line), "loop.steps=1", "run.dir=run").ok()


@pytest.mark.slow
def test_a_folder_of_ones_own_configs_stays_in_the_line(transfer, pretrained):
    transfer("init", "configs", "--from", "schedule=linear")

    ended = transfer("lr-find", "finetune", "--config-dir", "configs", "schedule=my_linear",
                     *SAMPLE, *STEPS, f"init_from={pretrained}").ok()  # fmt: skip

    line = re.search(r"  next +transfer (.*)$", ended.out, re.MULTILINE)[1]
    transfer(*shlex.split(line), "loop.steps=1", "run.dir=run").ok()


def test_folders_are_named_by_time_and_are_no_runs(transfer, tmp_path, pretrained):
    words = ("lr-find", "finetune", *SAMPLE, *STEPS, f"init_from={pretrained}")

    transfer(*words, "optimizer=sgd", "lr_find.end=10").ok()

    (folder,) = (tmp_path / "runs" / "lr-find").iterdir()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-finetune-sample_questions-sgd", folder.name
    )
    assert not (folder / "config.yaml").exists()
    again = transfer(*words, f"run.dir={folder}")
    assert again.code == 2
    assert again.err.endswith(f"run.dir: {folder} is not empty; choose a new or an empty folder\n")


@pytest.mark.slow
def test_pretraining_has_its_rate_found_too(transfer, tmp_path, tiny, corpus):
    words = ("data=text", f"data.train={corpus}", *tiny, *STEPS, "optimizer=muon", "device=cpu")

    ended = transfer("lr-find", "pretrain", *words, "loop.batch=8", "run.dir=rates").ok()

    assert (tmp_path / "rates" / "curve.png").is_file()
    assert "next       transfer pretrain data=text" in ended.out


def test_without_matplotlib_nothing_is_trained(transfer, tmp_path, pretrained, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    ended = transfer("lr-find", "finetune", *SAMPLE, f"init_from={pretrained}")

    assert ended.code == 2
    assert ended.err.endswith(f"lr-find draws its curve with matplotlib: {pip_install('report')}\n")
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(transfer, tmp_path, pretrained, monkeypatch):
    from transfer_cli.commands import lr_find

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lr_find, "_write_tensorboard", fail)

    ended = transfer("lr-find", "finetune", *SAMPLE, *STEPS, f"init_from={pretrained}",
                     "run.dir=rates")  # fmt: skip

    ended.refusal("rates cannot be written: No space left on device")
    assert list(tmp_path.iterdir()) == []
