"""Texts without labels: what few labels leave out, teachers, and consistency."""

import csv
import itertools
import json
import random
import shutil

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.functional.conftest import TINY
from transfer_cli.data.loader import StepDataLoader

TEACHING = ("distil", "self_training")


@pytest.fixture
def steps(monkeypatch):
    """Return the micro-batches of each step, as a run goes on."""
    micro_batches, load = [], StepDataLoader.load

    def note(self, step):
        micro_batches.append(load(self, step))
        return micro_batches[-1]

    monkeypatch.setattr(StepDataLoader, "load", note)
    return micro_batches


@pytest.mark.slow
@pytest.mark.parametrize("preset", [*TEACHING, "uda", "cvt"])
def test_the_labels_of_what_is_left_out_never_reach_a_batch(preset, adapt, steps):
    adapt(preset)

    for micro in itertools.chain.from_iterable(steps):
        for name, batch in micro.items():
            assert ("label" in batch) == (name == "main")
            assert ("teacher_rest" in batch) == (name == "rest" and preset in TEACHING)
    assert steps
    assert all("rest" in micro for step in steps for micro in step)


def test_a_stream_of_what_is_left_out_may_have_steps_of_its_own(adapt, steps):
    adapt("uda", "streams.rest.with=null", "loop.steps=8")

    drawn = [{name for micro in step for name in micro} for step in steps]
    assert {"main"} in drawn
    assert {"rest"} in drawn
    assert {"main", "rest"} not in drawn


def test_paraphrases_of_a_file_come_in_place_of_perturbed_copies(
    adapt, steps, tmp_path, few_questions
):
    texts = [row["text"] for row in csv.DictReader(few_questions.read_text().splitlines())]
    rows = [{"text": f" {text}", "paraphrases": ["so it is", "", "it is so"]} for text in texts]
    path = tmp_path / "back.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    ended = adapt("uda", f"losses.rest.paraphrases={path}")

    assert "losses.rest.paraphrases: " in ended.err
    batch = steps[0][0]["rest"]
    assert (batch["paraphrases_rest"][:, 1] == 2).float().mean() > 0.9
    assert "paraphrases_rest" not in steps[0][0]["main"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("text,back\na,b\n", "line 2: no column 'paraphrase'"),
        ("text,paraphrase\na,b\n", "none of"),
        ('{"text": "a", "paraphrase": 3}\n', "line 1: 'paraphrase' is a number"),
        (None, "does not exist"),
    ],
)
def test_paraphrases_that_cannot_be_used_end_the_run_at_once(adapt, tmp_path, content, says):
    path = tmp_path / ("back.jsonl" if content and content.startswith("{") else "back.csv")
    if content is not None:
        path.write_text(content)

    ended = adapt("uda", f"losses.rest.paraphrases={path}", ends=2)

    assert "losses.rest.paraphrases: " in ended.err
    assert says in ended.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_published_model_with_other_tokens_teaches_what_its_run_does(
    adapt, adapting, transfer, monkeypatch
):
    fresh = ("init=scratch", "tokenizer=wordpiece", "model=bert-base", *TINY[1:], "run.dir=taught",
             "objective.pooler=true", "model.direction=bidirectional")  # fmt: skip
    started = [word for word in adapting("full") if not word.startswith("init_from=")]
    for words in (("finetune", *started, *fresh), ("export", "run=taught", "to=published")):
        transfer(*words).ok()

    for teacher in ("taught", "published"):
        monkeypatch.setenv("TRANSFER_CACHE", f"cache_of_{teacher}")
        adapt("distil", f"adaptation.teachers=[{teacher}]", "loop.steps=3", run=f"by_{teacher}")

    one, two = (
        load_file(f"by_{origin}/model/weights.safetensors") for origin in ("taught", "published")
    )
    for name, weight in one.items():
        assert_close(two[name], weight, rtol=0, atol=1e-6, msg=name)


@pytest.mark.slow
def test_a_run_is_not_gone_on_with_after_its_teacher_was_trained_anew(
    adapt, adapting, transfer, teacher, at_record
):
    shutil.copytree(teacher, "taught")
    at_record("after", "validation", 3, lambda: __import__("signal").raise_signal(15))
    adapt("distil", "adaptation.teachers=[taught]", "loop.steps=4", ends=75)
    shutil.rmtree("taught")
    transfer("finetune", *adapting("full"), "loop.steps=3", "run.dir=taught").ok()

    ended = transfer("finetune", "resume=run")

    assert ended.code == 2
    assert "losses.teacher.teachers: the weights in taught are not those" in ended.err


MIXES = {
    "everything at once": (
        "adaptation/edits=[lora]", "adaptation.edits.lora.rank=2",
        "adaptation/plan=gradual_unfreezing", "adaptation/layer_scale=geometric",
        "adaptation/penalty=l2_sp", "loop.steps=8",
    ),
    "heads alone": ("adaptation/plan=head_only", "adaptation.store=trained"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("preset", ["cvt", "distil", "slices", "uda"])
def test_a_preset_goes_with_other_plans_edits_scales_and_penalties(preset, mix, adapt, transfer):
    adapt(preset, *MIXES[mix])

    transfer("evaluate", "run", "device=cpu").ok()


# --- what it is good for ---------------------------------------------------------------------


def write_topics(folder, count=604, seed=0):
    """Write texts of a made language: four topics of eight words each, and sixty words of all."""
    draw = random.Random(seed)
    words = ["".join(pair) for pair in itertools.product("bdfgklmnprst", "aeiou", "bdfgklm", "aei")]
    draw.shuffle(words)
    topics = [words[8 * topic : 8 * topic + 8] for topic in range(4)]
    shared = words[32:92]

    def row(topic):
        text = draw.choices(topics[topic], k=6) + draw.choices(shared, k=4)
        draw.shuffle(text)
        return f"{' '.join(text)},topic {topic}"

    for name, rows in (("train", count), ("validation", 40), ("test", 400)):
        lines = ["text,label", *(row(number % 4) for number in range(rows))]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_unlabelled_texts_help_where_a_language_has_topics(seed, transfer, tmp_path, read_json):
    # Measured: 59.0, 63.5 and 70.8 % of a label for each topic; with the rest the first and third
    # seeds gain over ten points, the second 8.5 (72.0); 99.5, 100 and 99.5 from a teacher that knew
    # all labels (100).
    write_topics(tmp_path)
    words = (
        "data=table", "data.train=train.csv", "data.validation=validation.csv",
        "data.test=test.csv", "init=scratch", "model=tiny", "model.width=64", "model.depth=2",
        "objective.pooling=mean", "tokenizer=wordpiece", "data.labelled=4", "loop.steps=150",
        "loop.batch=4", "optimizer.lr=1e-3", "loop.evaluate_every=150 steps",
        "checkpoint.every=150 steps", "device=cpu",
        f"seed={seed}",
    )  # fmt: skip
    accuracies = {}
    for name, more in {
        "labels": (),
        "uda": (
            "adaptation=uda",
            "losses.rest.rate=0.3",
            "losses.rest.temperature=1",
            "losses.rest.confidence=0",
        ),  # fresh weights are soon sure of anything
        "teacher": ("data.labelled=null", "loop.batch=16"),
        "distil": ("adaptation=distil", "adaptation.teachers=[teacher]"),
    }.items():
        last = {word.partition("=")[0]: word for word in (*words, *more)}
        transfer("finetune", *last.values(), f"run.dir={name}").ok()
        accuracies[name] = read_json(f"{name}/results.json")["measures"]["test"]["accuracy"]

    assert accuracies["uda"] >= accuracies["labels"] + 0.05
    assert accuracies["distil"] >= accuracies["labels"] + 0.2
