"""`transfer score`: sentences and prompts, by runs that were trained here."""

import json
import math
import re
import shutil
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import published
from tests.functional.conftest import LOOP
from transfer_cli.runs.items import read_items


@pytest.fixture
def score(transfer, read_json):
    """Return how to score with a run; gives its results and items, and what was printed."""

    def call(run, *words):
        ended = transfer("score", f"run={run}", "device=cpu", "output=out", *words).ok()
        results = read_json(Path("out/results.json"))
        (split,) = results["measures"]
        return (
            results["measures"][split],
            list(read_items(Path("out/items.jsonl"), split)),
            ended.out,
        )

    return call


@pytest.fixture
def masked(language_model):
    return language_model("mlm")


def test_labels_are_asked_for_by_prompts_and_compared_with_a_fine_tuned_run(
    score, pretrained, finetuned, transfer
):
    words = ("data=sample_questions", "prompt.item={text} {label}", "prompt.calibrate=true")
    measures, items, out = score(pretrained, *words, "prompt.norm=token")

    assert len(items) == len(list(read_items(finetuned / "items.jsonl", "test")))
    right = sum(item.predicted == item.label for item in items)
    assert measures["accuracy"] == measures["accuracy_calibrated"] == right / len(items)
    assert {"accuracy_none", "accuracy_token"} < set(measures)
    assert "always saying" in out
    shown = transfer("report", "out", str(finetuned)).ok()
    assert "score" in shown.out


def test_of_a_pair_the_likelier_sentence_is_said_without_a_prompt(
    score, pretrained, tmp_path, caplog
):
    good, bad = "The river Rima is long .", "long is river The Rima ."
    (tmp_path / "pairs.tsv").write_text(f"{good}\t{bad}\n{bad}\t{good}\n")

    measures, items, _ = score(
        pretrained, "data=minimal_pairs", "data.files=pairs.tsv", "prompt.shots=1"
    )

    assert "prompt: " in caplog.text
    assert measures["accuracy"] == 0.5
    assert [item.label for item in items] == [good, bad]
    assert {item.predicted for item in items} == {good if items[0].score else bad}
    assert items[0].probability == pytest.approx(items[1].probability)
    assert items[0].probability > 0.5


@pytest.mark.slow
def test_shots_and_orders_are_runs_of_their_own(score, pretrained, transfer, read_json):
    transfer(
        "score", str(pretrained), "data=sample_questions", "prompt.item={text} {label}",
        "prompt.shots=[0,1]", "prompt.orders=2", "split=validation", "output=out", "device=cpu",
    ).ok()  # fmt: skip

    runs = sorted(path.name for path in Path("out").iterdir())
    assert runs == ["shots-0-order-0", "shots-1-order-0", "shots-1-order-1"]
    seeds = [read_json(Path("out") / run / "results.json")["seed"] for run in runs]
    assert seeds == [0, 0, 1]
    shown = transfer("report", "out").ok()
    assert "prompt.shots" in shown.out


def test_choices_are_scored_as_what_goes_on(score, pretrained):
    measures, items, _ = score(
        pretrained,
        "data=sample_choices",
        "prompt.item={text} {label}",
        "prompt.norm=char",
        "split=validation",
    )

    assert measures["accuracy"] == pytest.approx(sum(item.score for item in items) / len(items))
    assert measures["chance"] < 0.5


def test_a_masked_model_fills_the_gap(score, masked):
    measures, items, _ = score(
        masked, "data=sample_questions", "prompt.item={text} It is a {label} .",
        "prompt.shots=1", "prompt.calibrate=true", "split=validation",
    )  # fmt: skip

    assert len(items) == 96
    assert 0 <= measures["accuracy"] <= 1


@pytest.mark.parametrize("norm", ["char", "unconditional"])
def test_a_masked_models_words_are_normalised_too(score, masked, norm):
    words = "{animal: of, city: the, disease: is, mineral: river, person: in, river: and}"
    item = ("data=sample_questions", "prompt.item={text} It is {label} .", f"prompt.words={words}")

    _, plain, _ = score(masked, *item, "split=validation")
    shutil.rmtree("out")
    _, items, _ = score(masked, *item, "split=validation", f"prompt.norm={norm}")

    assert items[0].probability != pytest.approx(plain[0].probability)


@pytest.mark.parametrize(
    ("item", "words", "key"),
    [("{label}: {text}", "", "item"), ("{text} {label} {pair}", "", "item"),
     ("{text} {label}", "漢", "words")],
)  # fmt: skip
def test_a_prompt_that_says_nothing_of_the_example_or_its_word_is_refused(
    item, words, key, transfer, pretrained, masked
):
    others = "{animal: of, city: the, disease: is, mineral: river, person: in, river: '漢'}"
    typed = [f"prompt.words={others}"] if words else []
    run = masked if words else pretrained

    ended = transfer(
        "score", run, "data=sample_questions", f"prompt.item={item}", "device=cpu", "output=out",
        *typed,
    )  # fmt: skip

    assert ended.refusal(f"prompt.{key}: ")
    assert not Path("out").exists()


def cloze_file(*rows):
    Path("cloze.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return ("data=cloze", "data.files=cloze.jsonl")


@pytest.mark.parametrize("batch", [1, 8])
def test_a_causal_model_says_all_tokens_of_a_word(score, tmp_path, batch):
    theirs = published.publish(tmp_path / "gpt2", "gpt2", "LMHeadModel")
    tokenizer = published.reference().AutoTokenizer.from_pretrained(tmp_path / "gpt2")
    before = "Who wrote the play about the"
    rows = [{"text": f"{before} [MASK] .", "answer": "prince"}, {"text": f"{before} prince"}]

    measures, items, out = score(tmp_path / "gpt2", *cloze_file(*rows), f"batch={batch}")

    start, word = (tokenizer(text)["input_ids"] for text in (before, " prince"))
    assert len(word) > 1
    with torch.no_grad():
        logits = theirs(torch.tensor([[*start, *word]])).logits[0, len(start) - 1 : -1]
    nats = -float(logits.log_softmax(-1)[range(len(word)), word].sum())
    said = logits.index_fill(1, torch.tensor([0]), -torch.inf).argmax(1).tolist()
    assert [item.loss for item in items] == pytest.approx([nats, nats], abs=1e-4)
    assert [item.predicted for item in items] == [tokenizer.decode(said).strip()] * 2
    assert [item.score for item in items] == [float(said == word)] * 2
    assert measures["answer_perplexity"] == pytest.approx(math.exp(nats), rel=1e-4)
    assert re.search(r"2 words: [\d.]+ % \(", out)


def test_a_word_before_which_nothing_stands_is_scored_after_the_end_of_a_text(score, tmp_path):
    theirs = published.publish(tmp_path / "gpt2", "gpt2", "LMHeadModel")
    tokenizer = published.reference().AutoTokenizer.from_pretrained(tmp_path / "gpt2")
    rows = [
        {"text": "Who wrote the [MASK]", "answer": "play"},
        {"text": "[MASK].", "answer": "Who"},
    ]

    _, items, _ = score(tmp_path / "gpt2", *cloze_file(*rows))

    row = [0, *tokenizer("Who")["input_ids"]]
    with torch.no_grad():
        logits = theirs(torch.tensor([row])).logits[0, :-1]
    nats = -float(logits.log_softmax(-1)[range(len(row) - 1), row[1:]].sum())
    assert items[1].loss == pytest.approx(nats, abs=1e-4)


def test_a_causal_model_chooses_among_words(score, pretrained):
    rows = [{"text": "Where is the river"}, {"text": "Where is the qzxv"}]
    Path("among.txt").write_text("river\nqzxv\n")

    measures, items, out = score(pretrained, *cloze_file(*rows), "data.among=among.txt")

    assert [(item.label, item.predicted) for item in items] == [("river", "river")]
    assert measures["accuracy"] == 1.0  # the other word is not one token
    assert "1 skipped" in out


def test_a_masked_model_says_words_of_one_token_and_skips_others(score, masked):
    rows = [
        {"text": "Where is the [MASK] ?", "answer": "river"},
        {"text": "Where is the [MASK] ?", "answer": "qzxv"},
    ]
    Path("among.txt").write_text("river\n")

    measures, items, out = score(masked, *cloze_file(*rows), "data.among=among.txt")

    assert [item.label for item in items] == ["river"]
    assert measures["accuracy"] == 1.0  # the only word that may be said
    assert "1 skipped" in out


# --- cloze ---------------------------------------------------------------------------------------


ITEM = "{text} It is the"
AT_ONCE = ("optimizer.lr=1e-30", "loop.steps=1", "loop.evaluate_every=1 steps")


@pytest.fixture
def start(language_model):
    return language_model


@pytest.fixture
def adapt(transfer, start):
    """Return how to adapt with the preset; gives the ended command."""

    def call(*words, objective="clm", ends=0, run="run"):
        ended = transfer(
            "finetune", f"init_from={start(objective)}", "data=sample_questions", "adaptation=pet",
            *LOOP, *words, f"run.dir={run}",
        )  # fmt: skip
        assert ended.code == ends, ended.err
        return ended

    return call


def shares(run, split="validation"):
    return {item.index: (item.predicted, item.probability, item.loss)
            for item in read_items(Path(run) / "items.jsonl", split)}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "end"), [("clm", ""), ("mlm", ""), ("mlm", " .")], ids=["causal", "masked", "."]
)
def test_before_the_first_step_it_is_what_score_says_without_training(
    objective, end, transfer, adapt, start
):
    adapt(f"objective.pattern={ITEM} {{mask}}{end}", *AT_ONCE, objective=objective)

    asked = (f"prompt.item={ITEM} {{label}}{end}", "split=validation", "device=cpu", "output=out")
    transfer("score", f"run={start(objective)}", "data=sample_questions", *asked).ok()

    answers, expected = shares("run"), shares("out")
    assert len(answers) == len(expected) == 96
    assert len({said for said, _, _ in expected.values()}) > 1 or len(
        {round(loss, 4) for _, _, loss in expected.values()}
    ) > 10  # fmt: skip
    for index, (_, probability, loss) in expected.items():
        assert answers[index][1:] == pytest.approx((probability, loss), abs=2e-6)


def test_in_a_masked_model_it_is_what_fill_says_of_the_words(transfer, adapt, start, read_json):
    adapt(f"objective.pattern={ITEM} {{mask}} .", *AT_ONCE, objective="mlm")
    labels = read_json(Path("run/model/model.json"))["labels"]
    Path("asked.jsonl").write_text(json.dumps({"text": "Who knows Lima ?"}) + "\n")
    transfer("predict", "run", "asked.jsonl", "output=said.jsonl", "device=cpu").ok()

    transfer(
        "fill", f"run={start('mlm')}", "Who knows Lima ? It is the [MASK] .", "top=2000",
        "output=filled.jsonl", "device=cpu",
    ).ok()  # fmt: skip

    (gap,) = json.loads(Path("filled.jsonl").read_text())["gaps"]
    by_word = {candidate["token"]: candidate["probability"] for candidate in gap}
    total = sum(by_word[label] for label in labels)
    said = json.loads(Path("said.jsonl").read_text())["probabilities"]
    assert said == pytest.approx({label: by_word[label] / total for label in labels}, abs=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["clm", "mlm"])
def test_it_is_evaluated_and_answers_as_classification_does(objective, adapt, transfer, read_json):
    adapt("loop.steps=6", "optimizer.lr=5e-3", objective=objective)

    results = read_json(Path("run/results.json"))
    kept = read_json(Path("run/model/model.json"))
    assert kept["task"]["pattern"] == "{text} {mask}"
    assert kept["task"]["words"]["city"] == ["city"]
    transfer("evaluate", "run", "device=cpu", "output=again.json").ok()
    measures = read_json(Path("again.json"))["measures"]["test"]
    assert measures["loss"] == pytest.approx(results["measures"]["test"]["loss"], rel=1e-5)
    Path("hi.jsonl").write_text('{"text": "Where is it ?"}\n')
    transfer("predict", "run=[run,run]", "input=hi.jsonl", "output=said.jsonl").ok()
    said = json.loads(Path("said.jsonl").read_text())
    assert sum(said["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def digest(file):
    return sha256(Path(file).read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["clm", "mlm"])
@pytest.mark.parametrize("way", ["loop.micro_batch=3", "loop.pack=true", "adaptation=frozen"])
def test_the_losses_do_not_depend_on_how_a_batch_passes(way, objective, adapt, read_json):
    if way == "adaptation=frozen":
        plain, other = ("adaptation=frozen", "loop.cache_features=false"), ("adaptation=frozen",)
    else:
        plain, other = (), (way,)
    for run, words in (("one", plain), ("two", other)):
        adapt(*words, "objective=cloze", "loop.steps=5", objective=objective, run=run)

    one, two = (read_json(Path(run) / "results.json")["measures"] for run in ("one", "two"))
    assert one["validation"]["loss"] == pytest.approx(two["validation"]["loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset",
    ["lora", "adapters", "bias_only", "gradual_unfreezing", "lm_auxiliary", "l2_sp", "top_k"],
)
def test_other_presets_go_with_it(preset, adapt):
    more = ("adaptation.plan.count=1",) if preset == "top_k" else ()

    adapt(f"adaptation={preset}", "objective=cloze", *more, "loop.steps=8")


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["uda", "distil"])
def test_what_the_main_head_says_can_be_learnt_further(preset, adapt, transfer):
    adapt("data.labelled=24", "loop.steps=3", objective="mlm", run="taught")
    further = {"uda": (), "distil": ("adaptation.teachers=[taught]",)}[preset]

    adapt(f"adaptation={preset}", "objective=cloze", "data.labelled=24", *further,
          "streams.rest.batch=8", "loop.steps=3", objective="mlm")  # fmt: skip


@pytest.mark.slow
def test_teachers_that_differ_by_their_pattern_alone_are_told_apart(adapt, start, transfer):
    students = []
    for teacher, pattern in (("plain", "{text} {mask}"), ("asked", "{text} It is the {mask}")):
        adapt(f"objective.pattern={pattern}", *AT_ONCE, run=teacher)
        transfer(
            "finetune", f"init_from={start('clm')}", "data=sample_questions", "data.labelled=12",
            "adaptation=distil", f"adaptation.teachers=[{teacher}]", *LOOP, "loop.steps=2",
            f"run.dir=of_{teacher}",
        ).ok()  # fmt: skip
        students.append(load_file(f"of_{teacher}/model/weights.safetensors"))

    weights = "model/weights.safetensors"
    assert digest(f"plain/{weights}") == digest(f"asked/{weights}")
    one, other = (student["heads.class.linear.weight"] for student in students)
    assert not one.equal(other)


def test_what_cannot_be_exported_says_so_in_a_line(adapt, transfer):
    shown = adapt("loop.steps=2").err
    assert "not as it is; Cloze is no classification that other libraries know" in shown

    for words in ((), ("format=onnx",)):
        ended = transfer("export", "run=run", "to=out", *words)
        assert ended.code == 2
        assert "Cloze is no classification that other libraries know; head=false" in ended.err
    transfer("export", "run=run", "to=out", "head=false").ok()


@pytest.mark.slow
def test_the_recipe_of_pet_runs_as_it_is_written(adapt, start, transfer, read_json):
    """Two patterns, then one classifier of all that they say."""
    transfer(
        "finetune", "-m", f"init_from={start('clm')}", "data=sample_questions", "data.labelled=48",
        "adaptation=pet", "objective.pattern='{text} {mask}','{text} A {mask}'",
        *LOOP, "loop.steps=9", "run.dir=pets",
    ).ok()  # fmt: skip
    runs = sorted(path.parent for path in Path("pets").glob("*/results.json"))
    assert len(runs) == 2

    transfer(
        "finetune", f"init_from={start('clm')}", "data=sample_questions", "data.labelled=48",
        "adaptation=distil", f"adaptation.teachers=[{','.join(map(str, runs))}]", "seed=0",
        *LOOP, "loop.steps=9", "run.dir=student",
    ).ok()  # fmt: skip

    assert read_json(Path("student/results.json"))["measures"]["test"]["accuracy"] > 0
