"""The commands as functions."""

import json
import signal

import pytest
import torch

import transfer_cli
from tests.functional.conftest import finished
from transfer_cli.errors import TransferError

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

    own, other = model.evaluate(), model.evaluate(file, slices={"who": {"word": "who"}})

    assert own["test"]["accuracy"] == trained.measures["test"]["accuracy"]
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


def test_the_process_stays_as_it_was(pretrained, tmp_path, capsys):
    def process():
        return signal.getsignal(signal.SIGTERM), torch.get_num_threads()

    before, state = process(), torch.get_rng_state()

    words = {"run": {"dir": tmp_path / "run"}, "threads": 1, **KEYS}
    transfer_cli.load(transfer_cli.finetune(init_from=pretrained, **words).path).predict(["Who ?"])

    assert capsys.readouterr() == ("", "")
    assert process() == before
    assert torch.get_rng_state().equal(state)


def test_a_row_for_each_run(trained):
    rows = {row["run"]: row for row in transfer_cli.results(trained.path.parent)}

    assert rows.keys() == {"command", "function"}
    assert rows["function"]["loop.steps"] == 6
    assert rows["function"]["test/accuracy"] == trained.measures["test"]["accuracy"]


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
        (lambda run: transfer_cli.results(run / "gone"), "gone"),
    ],
)
def test_a_mistake_raises_a_line(trained, call, key):
    with pytest.raises(TransferError, match=key):
        call(trained.path)
