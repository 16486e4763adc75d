"""What bad input gets: one line with cause and cure, exit code 2, and nothing half-written."""

import json
import pickle
import resource
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from transfer_cli.data.tokenizer import WordPiece

pytestmark = pytest.mark.functional

ROWS = [f"text number {n} of many,{'ab'[n % 2]}" for n in range(40)]

TABLES = {
    "good.csv": ("text,label", *ROWS),
    "empty.csv": (),
    "blank.csv": ("text,label",),
    "other-columns.csv": ("question,label", *ROWS),
    "ragged.csv": ("text,label", ROWS[0], "one,two,three", *ROWS),
    "unseen.csv": ("text,label", ROWS[0], "something,zebra"),
    "one-class.csv": ("text,label", *(f"text {n},a" for n in range(20))),
    "singles.csv": ("text,label", "x,a", "y,b", "z,c"),
    "unlabelled.csv": ("text,label", *ROWS, "something,"),
    "pairs.csv": (
        "text,pair,label",
        *(f"text {n},{'more ' * 5 * n},{'ab'[n % 2]}" for n in range(20)),
    ),
    "long.csv": ("text,label", *(f"{'very long text ' * 60},{'ab'[n % 2]}" for n in range(20))),
}


@pytest.fixture(autouse=True)
def _files(tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    for name, lines in TABLES.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    (folder / "latin.csv").write_bytes(b"text,label\ngood,a\ncaf\xe9,b\n")
    (folder / "empty.txt").touch()
    (folder / "blank.txt").write_text("\n  \n\n")
    (folder / "one-line.txt").write_text("a single line\n")


@pytest.fixture
def refusal(transfer, tmp_path):
    """Return how to run what is refused; checks the form of the refusal and gives its line."""

    def call(command, *words):
        ended = transfer(command, *words)
        lines = ended.err.splitlines()
        assert ended.code == 2, ended.err
        assert "Traceback" not in ended.err
        assert [line for line in lines if line.startswith("transfer ")] == [lines[-1]]
        assert lines[-1].startswith(f"transfer {command}: ")
        assert [path.name for path in tmp_path.iterdir()] == ["given"]
        return lines[-1]

    return call


@pytest.fixture
def finetune(tiny, loop):
    """Return a command line that fine-tunes a fresh model on a table."""
    return ("finetune", "data=table", "init=scratch", "tokenizer=wordpiece", *tiny, *loop,
            "loop.steps=2", "run.dir=run")  # fmt: skip


@pytest.fixture
def pretrain(tiny, loop, corpus):
    """Return a command line that pretrains a model on text."""
    return ("pretrain", "data=text", f"data.train={corpus}", *tiny, *loop, "loop.steps=2",
            "run.dir=run")  # fmt: skip


# --- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.train=given/godo.csv"], "given/godo.csv does not exist. Did you mean 'good.csv'?"),
        (["data.train=given"], "given"),
        (["data.train=given/empty.csv"], "given/empty.csv is empty."),
        (["data.train=given/blank.csv"], "given/blank.csv has no rows."),
        (
            ["data.train=given/latin.csv", "data.encoding=utf-8"],
            "given/latin.csv, line 3: byte 0xE9 at offset 3 of the line is not UTF-8. Save the",
        ),
        (
            ["data.train=given/other-columns.csv", "data.text=text"],
            "line 2: no column 'text'; there are 'question', 'label'.",
        ),
        (["data.train=given/good.csv", "data.label=lable"], "Did you mean 'label'?"),
        (
            ["data.train=given/ragged.csv"],
            "given/ragged.csv, line 3: 3 columns, but the header in line 1 has 2. Put values that",
        ),
        (
            ["data.train=given/good.csv", "data.validation=given/unseen.csv"],
            "given/unseen.csv, line 3: the label 'zebra' of validation is not among the 2 labels",
        ),
        (["data.train=given/unlabelled.csv"], "line 42: the label in 'label' is empty."),
        (
            ["data.train=given/pairs.csv", "data.pair=pair", "data.truncate=first"],
            "given/pairs.csv, line 15: the second text has 65 tokens, and data.length=64 leaves 62",
        ),
        (["data.train=given/one-class.csv"], "all examples have the label 'a'; there is nothing"),
        (["data.train=given/singles.csv"], "leaves nothing to validate on (3 examples of 3"),
        (
            ["data.train=given/good.csv", "data.labelled=1"],
            "labelled=1 is fewer examples than the 2 classes. Set data.labelled to at least 2.",
        ),
        (
            ["data.train=given/good.csv", "data.validation_share=0.01"],
            "a validation share of 0.01 leaves nothing to validate on (40 examples of 2 classes).",
        ),
    ],
)
def test_labelled_data_that_cannot_be_learnt_from(refusal, finetune, words, message):
    assert message in refusal(*finetune, *words)


def of_lines(*rows):
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


TAGGED = of_lines(*["Lomta B-LOC", "is O", ""] * 20)
CHOSEN = [{"context": "a", "choices": ["x", "y"], "label": n % 2} for n in range(20)]
ASKED = {"id": "a", "question": "what ?", "answers": [{"text": "red", "answer_start": 0}]}
ANSWERED = {"data": [{"paragraphs": [{"context": "it is red", "qas": [ASKED]}]}]}
SAID = {"history": ["a"], "candidates": ["x", "y"]}
NUMBERED = of_lines("text,score", *(f"t {n},{n}" for n in range(20)))


@pytest.mark.parametrize(
    ("data", "files", "message"),
    [
        (
            "conll objective=tagging", {"train": TAGGED, "test": TAGGED + "Bob B-PER\n"},
            "given/test, line 61: the tag 'B-PER' is not among the 2 of the training file",
        ),
        (
            "squad objective=span", {"train.json": json.dumps(ANSWERED)},
            "data[0].paragraphs[0].qas[0]: its answer does not stand in the text at answer_start",
        ),
        (
            "choices objective=choice",
            {"train.jsonl": of_lines(*CHOSEN, {**CHOSEN[0], "label": 2})},
            "given/train.jsonl, line 21: 'label' is 2, expected a number from 0 to 1, since there",
        ),
        (
            "dialog objective=next_utterance", {"train.jsonl": of_lines(*CHOSEN)},
            "given/train.jsonl, line 1: 'history' is no list of texts, expected at least 1. "
            "Such columns are those of data=choices objective=choice.",
        ),
        (
            "numbers objective=regression", {"train.csv": NUMBERED + "t,1e308\n"},
            "given/train.csv, line 22: '1e308' in 'score' is more than 32 bits hold, 3e38",
        ),
        (
            "numbers objective=regression", {"train.csv": "text,score\n"},
            "given/train.csv has no rows that can be read",
        ),
        (
            "labels objective=multilabel",
            {"train.csv": of_lines("text,labels", *["a,x", "b,x|y"] * 20),
             "validation.csv": "text,labels\n"},
            "given/validation.csv has no rows",
        ),
        (
            "table", {"train.jsonl": of_lines(*[SAID] * 9)},
            "Such columns are those of data=dialog objective=next_utterance.",
        ),
        (
            "table", {"train.csv": of_lines("text,label", *(f"t,x{n}" for n in range(100_000)))},
            "given/train.csv, line 10002: more than 10,000 different labels. Is 'label' the column",
        ),
    ],
)  # fmt: skip
def test_each_kind_of_data_says_where_it_is_wrong(
    refusal, finetune, tmp_path, data, files, message
):
    words = f"data={data}".split()
    for name, text in files.items():
        (tmp_path / "given" / name).write_text(text)
        words.append(f"data.{name.partition('.')[0]}=given/{name}")

    assert message in refusal(*finetune[:1], *words, *finetune[2:])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.train=given/nothing.txt"], "given/nothing.txt does not exist."),
        (["data.train=given/*.md"], "No file matches given/*.md"),
        (["data.train=given/empty.txt"], "given/empty.txt is empty."),
        (["data.train=given/blank.txt"], "given/blank.txt: nothing but empty lines"),
        (["data.train=given/one-line.txt"], "data.validation_share"),
        (["data.test={corpus}"], "is in train and in test. Leave it out of one of them."),
    ],
)
def test_text_that_cannot_be_learnt_from(refusal, pretrain, corpus, words, message):
    assert message in refusal(*pretrain, *(word.format(corpus=corpus) for word in words))


def test_the_wrong_kind_of_data(refusal, pretrain, finetune):
    assert "this is labelled data, which only finetune takes" in refusal(
        "pretrain", "data=sample_questions", *pretrain[3:]
    )
    assert "this is text without labels, which only pretrain takes" in refusal(
        "finetune", "data=sample_text", *finetune[2:]
    )


def test_texts_that_are_too_long_are_cut_with_one_counted_warning(transfer, finetune):
    ended = transfer(*finetune, "data.train=given/long.csv", "data.validation=given/good.csv")

    assert ended.code == 0, ended.err
    warnings = [line for line in ended.err.splitlines() if line.startswith("warning: Cut ")]
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: Cut 20 of 20 examples to 64 tokens")


# --- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("loop.steps=0", "loop.steps: must be at least 1, got 0"),
        ("loop.batch=0", "loop.batch: must be at least 1, got 0"),
        ("loop.micro_batch=-1", "loop.micro_batch: must be at least 1, got -1"),
        ("loop.epochs=-1", "loop.epochs: must be above 0, got -1"),
        ("loop.clip=0", "loop.clip: must be above 0, got 0"),
        ("loop.evaluate_every=3 stpes", "loop.evaluate_every: '3 stpes' is no length"),
        ("checkpoint.every=0 steps", "checkpoint.every: '0 steps' is no length"),
        ("checkpoint.keep=-1", "checkpoint.keep: must be 0 or more, got -1"),
        ("loop.monitor=los", "loop.monitor: there is no measure 'los'. Did you mean 'loss'?"),
        ("optimizer.lr=-1", "optimizer.lr: must be a number above 0, got -1"),
        ("precision=fp8", "precision: 'fp8' is not one of auto, fp32, bf16, fp16. Did you mean"),
        ("precision=fp16", "precision: fp16 needs a GPU; on a CPU use fp32 or bf16"),
        ("device=gpu", "device: 'gpu' is not auto, cpu, cuda (a GPU) or cuda:N."),
        ("device=cuda:99", "device: cuda:99 asked for, but "),
        ("data.length=65", "data.length: 65 does not fit the model's 64 positions"),
        ("model.heads=3", "model"),
        ("data.validation_share=2", "data: validation_share is 2"),
        (
            "+objective@losses.mask=mlm",
            "losses.mask: MaskedLM needs a bidirectional model, and this",
        ),
    ],
)
def test_a_value_that_cannot_be(refusal, pretrain, word, message):
    assert message in refusal(*pretrain, word)


# --- init_from ---------------------------------------------------------------------------------


@pytest.fixture
def from_run(loop):
    """Return how to write the command line that fine-tunes from a place."""
    return lambda place, *more: (
        "finetune", "data=sample_questions", f"init_from={place}", *loop, "loop.steps=2",
        "run.dir=run", *more,
    )  # fmt: skip


@pytest.fixture
def copied(pretrained, tmp_path):
    """Return a copy of a pretrained run that a test may change."""
    return shutil.copytree(pretrained, tmp_path / "given" / "copied")


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return Path.touch, (self._marker,)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nothing", "init_from: there is no folder nothing"),
        ("given", "init_from: given is neither a run directory nor its model/ folder nor one of"),
        ("given/good.csv", "init_from: given/good.csv is a file; give the run directory"),
    ],
)
def test_a_start_that_is_no_run(refusal, from_run, place, message):
    assert message in refusal(*from_run(place))


def test_fine_tuning_without_a_start(refusal, from_run):
    assert "init_from: needs a pretrained run directory" in refusal(*from_run("null"))


def test_a_run_that_is_not_finished(refusal, from_run, copied):
    (copied / "model" / "weights.safetensors").unlink()

    assert "a run writes it when it is finished; before that, take one of its checkpoints" in (
        refusal(*from_run(copied))
    )


def test_a_run_with_the_tokenizer_of_another(refusal, from_run, copied):
    other = WordPiece(size=600).make(lambda: iter(["entirely other words"]))
    other.save(copied / "model" / "tokenizer.json")
    (copied / "model" / "meta.json").unlink()

    assert "is not the tokenizer that this model was trained with; put the original back" in (
        refusal(*from_run(copied))
    )


def test_another_tokenizer_than_the_runs(refusal, from_run, pretrained, tmp_path):
    path = tmp_path / "given" / "tokenizer.json"
    WordPiece(size=600).make(lambda: iter(["entirely other words"])).save(path)
    file = ("tokenizer=file", f"tokenizer.path={path}")

    assert "trained with another tokenizer than tokenizer.path; leave tokenizer= out" in (
        refusal(*from_run(pretrained, *file))
    )
    assert "tokenizer=bpe: init_from brings its own tokenizer; leave tokenizer= out" in (
        refusal(*from_run(pretrained, "tokenizer=bpe"))
    )


def test_the_runs_own_tokenizer_may_be_named(transfer, from_run, pretrained):
    path = pretrained / "model" / "tokenizer.json"

    ended = transfer(*from_run(pretrained, "tokenizer=file", f"tokenizer.path={path}"))

    assert ended.code == 0, ended.err


def test_another_model_than_the_runs(refusal, from_run, pretrained):
    assert "model=small: init_from brings its own model; leave model= out" in (
        refusal(*from_run(pretrained, "model=small"))
    )


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl"])
def test_code_in_a_file_or_folder_is_not_run(refusal, from_run, tmp_path, name):
    marker = tmp_path / "given" / "marker"
    folder = tmp_path / "given" / "elsewhere"
    folder.mkdir()
    torch.save(Bomb(marker), folder / name)

    for place in (folder / name, folder):
        line = refusal(*from_run(place))
        assert f"{name} is a pickle, which could run code when opened" in line
    assert not marker.exists()


def test_code_in_place_of_the_weights_is_not_run(refusal, from_run, copied, tmp_path):
    marker = tmp_path / "given" / "marker"
    (copied / "model" / "weights.safetensors").write_bytes(pickle.dumps(Bomb(marker)))
    (copied / "model" / "meta.json").unlink()

    line = refusal(*from_run(copied))

    assert "weights.safetensors is damaged or no safetensors file" in line
    assert not marker.exists()


@pytest.mark.parametrize("name", ["model.json", "tokenizer.json"])
def test_a_damaged_start(refusal, from_run, copied, name):
    (copied / "model" / name).write_text('{"shape": ')

    assert f"{name} is damaged" in refusal(*from_run(copied))


# --- the run directory and the disk ------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("{pretrained}", "already holds a run; go on with it by resume="),
        ("given", "run.dir: given is not empty; choose a new or an empty folder"),
        ("given/good.csv", "run.dir: given/good.csv is not a folder"),
        ("given/good.csv/run", "run.dir: given/good.csv/run cannot be written: Not a directory"),
    ],
)
def test_a_run_directory_that_cannot_be(refusal, pretrain, pretrained, place, message):
    before = sorted(pretrained.rglob("*"))

    assert message in refusal(*pretrain, f"run.dir={place.format(pretrained=pretrained)}")
    assert sorted(pretrained.rglob("*")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no files, not even from root")
def test_a_place_without_the_right_to_write(refusal, pretrain, monkeypatch):
    assert "run.dir: /proc/run cannot be written: " in refusal(*pretrain, "run.dir=/proc/run")
    assert "run.root: /proc/pretrain cannot be written: " in refusal(
        *pretrain[:-1], "run.root=/proc"
    )
    monkeypatch.setenv("TRANSFER_CACHE", "/proc/cache")
    assert "Cannot write the cache in /proc/cache" in refusal(*pretrain)


@contextmanager
def files_up_to(size_bytes):
    """Let no file grow larger: the disk is full, whoever asks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_space_for_the_first_files(transfer, refusal, pretrain):
    assert transfer("prepare", *pretrain[1:3], "tokenizer.size=600").code == 0

    with files_up_to(1000):
        line = refusal(*pretrain)

    assert "cannot be written: File too large. Free some space there" in line


def test_no_space_for_a_checkpoint(transfer, pretrain, tmp_path, read_json):
    assert transfer(*pretrain, "run.dir=whole").code == 0
    weights = (tmp_path / "whole" / "model" / "weights.safetensors").read_bytes()

    with files_up_to(len(weights) + 1000):  # the weights find a place, the optimizer's state not
        ended = transfer(*pretrain)
    left = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    status = read_json(tmp_path / "run" / "status.json")
    resumed = transfer("pretrain", "resume=run")

    assert ended.code == 2
    assert "Traceback" not in ended.err
    line = ended.err.splitlines()[-1]
    assert line.startswith("transfer pretrain: run/checkpoints")
    assert "cannot be written" in line
    assert not left
    assert status["status"] == "failed"
    assert resumed.code == 0, resumed.err
    assert (tmp_path / "run" / "model" / "weights.safetensors").read_bytes() == weights


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_no_space_for_the_output(refusal, finetuned, tmp_path, command):
    words = [f"run={finetuned}", "output=/dev/full", "device=cpu"]
    if command == "predict":
        (tmp_path / "given" / "in.txt").write_text("Who ?\n")
        words.append("input=given/in.txt")

    assert "/dev/full cannot be written: No space left on device" in refusal(command, *words)
    assert Path("/dev/full").is_char_device()


# --- the machine -------------------------------------------------------------------------------


def test_a_model_that_no_memory_holds(refusal, pretrain):
    line = refusal(*pretrain, f"model.width={2**24}")

    assert "out of memory" in line
    assert "loop.micro_batch" in line
    assert "loop.batch" in line


HUNGRY = '''
import torch
from transfer_cli.objectives.causal_lm import CausalLM

class Hungry(CausalLM):
    """Needs more than there is, once it trains."""

    def loss_sums(self, model, batch, encoded):
        if model.training:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return super().loss_sums(model, batch, encoded)
'''


def test_a_step_that_no_memory_holds(refusal, pretrain, tmp_path, monkeypatch):
    given = tmp_path / "given"
    (given / "hungry_plugin.py").write_text(HUNGRY)
    (given / "objective").mkdir()
    (given / "objective" / "hungry.yaml").write_text("# Hungry\n_target_: hungry_plugin.Hungry\n")
    monkeypatch.syspath_prepend(given)

    line = refusal(
        *pretrain, "objective=hungry", "--config-dir", "given", "--plugin", "hungry_plugin"
    )

    assert "out of memory. Lower loop.micro_batch" in line
    assert "loop.batch" in line


def test_a_run_that_diverges_says_where_and_ends_with_4(transfer, pretrain, tmp_path, read_json):
    ended = transfer(
        *pretrain, "optimizer.lr=1e18", "schedule=constant", "loop.clip=null", "loop.steps=20",
        "loop.evaluate_every=20 steps", "loop.max_bad_steps=2",
    )  # fmt: skip

    assert ended.code == 4, ended.err
    assert "Traceback" not in ended.err
    said = ended.err.splitlines()[-1]
    assert "loss or gradient is not finite" in said
    assert "on examples main" in said
    assert read_json(tmp_path / "run" / "status.json")["status"] == "failed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["optimizer.lr", "=", "1"], "=: expected KEY=VALUE, with no space around ="),
        (["seed=0,", "1"], "several values have no space between them: KEY=A,B"),
        (["given/good.csv"], "say what it is for, such as data=table data.train=given/good.csv"),
        (["data=given/good.csv"], "this is a file; type data=table data.train=given/good.csv"),
    ],
)
def test_what_people_type_first_is_answered(refusal, words, said):
    assert said in refusal("finetune", "init_from=given", *words)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("*.csv", "given/*.csv does not exist, and a pattern of names is read for text alone"),
        ("one-line.txt", "text without labels is for pretrain data=text"),
    ],
)
def test_what_is_no_table_is_answered(refusal, finetune, name, said):
    assert said in refusal(*finetune, f"data.train=given/{name}")


def test_a_text_in_the_place_of_the_label_is_named(refusal, finetune, tmp_path):
    rows = "".join(f"{'ab'[n % 2]},the text no {n}\n" for n in range(30))
    (tmp_path / "given" / "swapped.csv").write_text("text,label\n" + rows)

    line = refusal(*finetune, "data.train=given/swapped.csv")

    assert "30 examples have 30 different labels. Is that the column of the label?" in line


def test_a_sweep_is_no_run_to_go_on_with(refusal, tmp_path):
    (tmp_path / "given" / "sweep.json").write_text("{}")

    assert "resume: given is a sweep; type the command" in refusal("finetune", "resume=given")
