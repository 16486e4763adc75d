"""The commands as functions."""

import _thread
import json
import logging
import os
import random
import signal
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import transfer_cli
from tests.functional.conftest import finished
from tests.published import publish
from transfer_cli.errors import ConfigError, SweepError, TransferError

WORDS = ["data=sample_questions", "device=cpu", "loop.batch=8", "loop.steps=6"]
KEYS = {"data": "sample_questions", "device": "cpu", "loop": {"batch": 8, "steps": 6}}


@pytest.fixture(scope="module")
def trained(pretrained, tmp_path_factory):
    """Return the run of a function, beside `command`, that of the same command."""
    folder = tmp_path_factory.mktemp("api")
    finished("finetune", *WORDS, f"init_from={pretrained}", f"run.dir={folder / 'command'}")
    return transfer_cli.finetune(init_from=pretrained, run={"dir": folder / "function"}, **KEYS)


def test_a_function_does_what_its_command_does(trained):
    command = trained.path.with_name("command")
    named = ("model/weights.safetensors", "metrics.jsonl", "results.json")

    assert all(
        (command / name).read_bytes() == (trained.path / name).read_bytes() for name in named
    )
    assert trained.measures == json.loads((command / "results.json").read_text())["measures"]


def test_answers_are_those_of_predict(trained, transfer, type_in):
    texts = ["Where is Miryar ?", "Who are we ?"]
    type_in("\n".join(texts))
    lines = transfer("predict", trained.path, "-").out.splitlines()

    answers = transfer_cli.load(trained.path).predict(texts)

    both = zip(texts, answers, strict=True)
    assert [{"text": text, **answer} for text, answer in both] == [*map(json.loads, lines)]
    assert all(answer["probability"] == max(answer["probabilities"].values()) for answer in answers)


def test_measures_are_those_of_the_run_and_of_a_file(trained, questions, tmp_path):
    model = transfer_cli.load(trained.path)
    file = tmp_path / "own.csv"
    file.write_text("text,label\nWhere is it ?,city\nWho ?,person\nWho are we ?,person\n")

    measures, other = model.evaluate(), model.evaluate(file, slices={"who": {"word": "who"}})

    assert measures["test"]["accuracy"] == trained.measures["test"]["accuracy"]
    right = [a["label"] == "person" for a in model.predict(["Who ?", "Who are we ?"])]
    assert other["input"]["accuracy/slice/who"] == sum(right) / 2


def test_vectors_do_not_depend_on_their_batch(trained):
    model = transfer_cli.load(trained.path)
    texts = ["Where is Miryar ?", "Who are we , and where is the river of the north ?"]

    whole_ND = model.embed(texts)

    alone_ND = torch.cat([model.embed([text]) for text in texts])
    assert whole_ND.shape == (2, model.model.backbone.shape.width)
    torch.testing.assert_close(whole_ND, alone_ND, rtol=0, atol=1e-5)
    assert not whole_ND.equal(model.embed(texts, pooling="max"))
    assert model.embed([]).shape == (0, whole_ND.shape[1])


def test_a_text_goes_on_as_generate_does(language_model, transfer):
    run = language_model("clm")

    text = transfer_cli.load(run).generate("The river", max_tokens=5, temperature=0)

    shown = transfer("generate", run, "The river", "max_tokens=5", "temperature=0").out
    assert shown == f"The river{text}\n"
    for key in ("messages", "output", "run", "device", "samples", "sample"):
        with pytest.raises(TransferError, match=rf"^{key}: "):
            transfer_cli.load(run).generate("The river", **{key: "cpu"})
    with pytest.raises(TransferError, match=r"^prompt: expected a text"):
        transfer_cli.load(run).generate(None)


def process():
    """Return what belongs to the process, and to whoever calls a function."""
    ours, root = logging.getLogger("transfer_cli"), logging.getLogger()
    torch_state = (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
    return (
        signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), dict(os.environ),
        Path.cwd(), [*warnings.filters], ours.level, [*ours.handlers], [*root.handlers],
        root.manager.disable, threading.enumerate(), random.getstate(), torch_state,
        torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(),
    )  # fmt: skip


def test_the_process_stays_as_it_was(pretrained, tmp_path, capsys):
    before = process()

    words = {"run": {"dir": tmp_path / "run"}, "threads": 1, **KEYS}
    transfer_cli.load(transfer_cli.finetune(init_from=pretrained, **words).path).predict(["Who ?"])

    assert capsys.readouterr() == ("", "")
    assert process() == before


def test_a_process_has_runs_of_several_sizes_and_outlives_one_that_fails(pretrained, tmp_path):
    def trained(width, heads):
        model = {"width": width, "heads": heads, "depth": 1, "feedforward": 32, "positions": 64}
        return transfer_cli.finetune(
            init="scratch", model={"tiny": model}, tokenizer={"wordpiece": {"size": 300}},
            run={"dir": tmp_path / str(width)}, **KEYS,
        )  # fmt: skip

    runs = [trained(16, 2)]
    with pytest.raises(TransferError, match=r"heads|width"):
        trained(24, 5)
    runs += [trained(32, 4)]

    assert [run.config["model.width"] for run in runs] == [16, 32]
    assert [transfer_cli.load(run.path).embed(["Who ?"]).shape for run in runs] == [
        (1, 16), (1, 32),
    ]  # fmt: skip


def test_an_interrupt_ends_a_run_that_can_go_on(pretrained, tmp_path, monkeypatch):
    before, run = process(), tmp_path / "run"
    keys = {**KEYS, "loop": {"batch": 8, "steps": 6, "log_every": 1}, "run": {"dir": run}}
    keys["checkpoint"] = {"every": "2 steps"}
    real = transfer_cli.engine.handlers.report_of

    def at_third(engine):
        if engine.state.iteration == 3:
            _thread.interrupt_main()
        return real(engine)

    with monkeypatch.context() as patch:
        patch.setattr(transfer_cli.engine.handlers, "report_of", at_third)
        with pytest.raises(KeyboardInterrupt):
            transfer_cli.finetune(init_from=pretrained, **keys)

    assert process() == before
    assert [row["status"] for row in transfer_cli.report(run)] == ["stopped"]
    assert transfer_cli.finetune(resume=run).status == "finished"


def test_rows_have_the_same_keys_each_with_values_of_one_type(trained, pretrained, tmp_path):
    other = transfer_cli.finetune(
        init_from=pretrained, adaptation="lora", run={"dir": tmp_path / "run"}, **KEYS,
        **{"loop.epochs": 1.5, "checkpoint.minutes": 2},
    )  # fmt: skip

    rows = transfer_cli.report([trained.path.parent, other.path])

    assert [Path(row["run"]).name for row in rows] == ["command", "function", "run"]
    assert rows[1]["test/accuracy"] == trained.measures["test"]["accuracy"]
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    kinds = {key: {type(row[key]) for row in rows} - {type(None)} for key in rows[0]}
    assert {key for key, kind in kinds.items() if len(kind) > 1} == set()
    assert set.union(*kinds.values()) == {str, int, float, bool}
    assert [row["loop.epochs"] for row in rows] == [3.0, 3.0, 1.5]
    assert rows[0]["optimizer.betas"] == "[0.9, 0.999]"
    assert [row["adaptation.edits.lora.rank"] for row in rows] == [None, None, 8]


# --- sweeps ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sweep_has_a_run_for_each_combination(pretrained, tmp_path, capsys):
    before = process()

    made = transfer_cli.sweep(
        "finetune", over={"optimizer.lr": [1e-3, 3e-3], "adaptation": ["full", "lora"]},
        sweep={"isolate": False}, init_from=pretrained, run={"dir": tmp_path / "runs"}, **KEYS,
    )  # fmt: skip

    assert made.path == tmp_path / "runs"
    swept = [(run.config["optimizer.lr"], run.config["adaptation"]) for run in made.runs]
    assert swept == [(1e-3, "full"), (1e-3, "lora"), (3e-3, "full"), (3e-3, "lora")]
    errors = [run.measures["validation"]["error_rate"] for run in made.runs]
    assert made.best.measures["validation"]["error_rate"] == min(errors)
    assert capsys.readouterr() == ("", "")
    assert process() == before
    transfer_cli.load(made.path).predict(["Who ?"])


@pytest.mark.slow
def test_jobs_of_a_sweep_have_processes_of_their_own_and_some_may_fail(pretrained, tmp_path):
    before, folder = process(), tmp_path / "runs"

    with pytest.raises(SweepError, match=f"1 of 2 jobs failed; see {folder}"):
        transfer_cli.sweep(
            "finetune", over={"init_from": [pretrained, tmp_path / "gone"]},
            run={"dir": folder}, **KEYS,
        )  # fmt: skip

    rows = transfer_cli.report(folder)
    assert sorted(row["status"] for row in rows) == ["failed", "finished"]
    assert process() == before


def test_a_preset_of_a_sweep_sweeps(pretrained, tmp_path):
    keys = {"init_from": pretrained, "run.dir": tmp_path / "runs", "sweep.isolate": False, **KEYS}

    made = transfer_cli.sweep("finetune", sweep="lr", over={"optimizer.lr": [1e-3]}, **keys)

    assert [run.config["optimizer.lr"] for run in made.runs] == [1e-3]
    with pytest.raises(ConfigError, match="sweep"):
        transfer_cli.finetune(sweep="lr", **keys)


@pytest.mark.slow
def test_a_model_of_the_hub_is_loaded(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    publish(tmp_path / "cache", "bert")
    monkeypatch.setattr(hub, "snapshot_download", lambda *words, **more: str(tmp_path / "cache"))

    vectors = transfer_cli.load("hf:owner/name").embed(["who ?"])

    assert vectors.equal(transfer_cli.load(tmp_path / "cache").embed(["who ?"]))


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda run: transfer_cli.finetune(lopp={"steps": 1}), "lopp"),
        (lambda run: transfer_cli.finetune(init_from=run / "gone"), "init_from"),
        (lambda run: transfer_cli.finetune(init_from=run, data=object()), "data"),
        (lambda run: transfer_cli.finetune(init_from=run, devices=2), "devices"),
        (lambda run: transfer_cli.load(run / "gone"), "run"),
        (lambda run: transfer_cli.load(run).generate("Who"), "causal"),
        (lambda run: transfer_cli.load(run).predict([3]), "text"),
        (lambda run: transfer_cli.report(run / "gone"), "gone"),
        (lambda run: transfer_cli.report([]), "no path given"),
        (lambda run: transfer_cli.sweep("evaluate"), "command"),
        (lambda run: transfer_cli.sweep("finetune", init_from=run), "over"),
        (lambda run: transfer_cli.sweep("finetune", over={"seed": 3}), "over: seed"),
        (lambda run: transfer_cli.sweep("finetune", over={"seed": "0,1"}), "over: seed"),
        (lambda run: transfer_cli.sweep("finetune", over={"loop": [{"steps": 1}]}), "over: loop"),
        (lambda run: transfer_cli.sweep("finetune", over={"adaptation": [None]}), "over"),
        (lambda run: transfer_cli.sweep("finetune", over={"sede": [0, 1]}), "sede"),
    ],
)
def test_a_mistake_raises_a_line(trained, call, key):
    with pytest.raises(TransferError, match=key):
        call(trained.path)


@pytest.mark.parametrize("texts", ["Who ?", {"text": "Who ?"}])
def test_one_text_alone_is_refused(trained, texts):
    model = transfer_cli.load(trained.path)

    for answer in (model.predict, model.embed):
        with pytest.raises(TransferError, match=r"^texts: "):
            answer(texts)


def test_an_interpreter_completes_the_functions():
    assert {"finetune", "pretrain", "load", "report", "sweep"} <= {*dir(transfer_cli)}
