"""What tasks of whole texts alone have; what is promised of every kind: `test_tasks.py`."""

import csv
import io
import json
import re

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file

from tests.published import TEXT, publish, reference
from tests.task_kinds import PLACES, choice, turn
from transfer_cli.data import sample

# --- numbers or labels of a text -----------------------------------------------------------------

OF_TEXTS = {
    "regression": ("regression", lambda answer: [answer["value"]], lambda logits: logits),
    "multilabel": (
        "multi_label_classification",
        lambda answer: list(answer["probabilities"].values()),
        torch.sigmoid,
    ),
}
"""Of each: its name elsewhere, the numbers of an answer, and what they are of logits."""
OF_TEXTS["not named"] = (None, *OF_TEXTS["regression"][1:])


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("regression", "hf"),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in (("regression", "onnx"), ("multilabel", "hf"), ("multilabel", "onnx"))
        ),
    ],
)
def test_what_is_exported_gives_the_same_answers(transfer, task_run, tmp_path, kind, form):
    transformers = pytest.importorskip("transformers")
    onnxruntime = pytest.importorskip("onnxruntime")
    problem, numbers_of, of_logits = OF_TEXTS[kind]
    run, texts = task_run(kind), ["the red bridge", "the new bridge"]
    (tmp_path / "new.txt").write_text("\n".join(texts))
    lines = transfer("predict", str(run), "new.txt", "device=cpu").out.splitlines()

    ended = transfer("export", str(run), "to", f"format={form}").ok()

    said = "left out  the fitted thresholds, so that 0.5 decides"
    assert (said in ended.out) == (kind == "multilabel")
    if form == "hf":
        tokenizer = transformers.AutoTokenizer.from_pretrained("to")
        model = transformers.AutoModelForSequenceClassification.from_pretrained("to").eval()
        with torch.no_grad():
            logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
        assert model.config.problem_type == problem
    else:
        tokenizer = tokenizers.Tokenizer.from_file("to/tokenizer.json")
        session = onnxruntime.InferenceSession("to/model.onnx")
        rows = [tokenizer.encode(text) for text in texts]
        given = [
            {"input_ids": np.array([row.ids]), "attention_mask": np.array([row.attention_mask])}
            for row in rows
        ]
        logits = torch.tensor(np.concatenate([session.run(None, inputs)[0] for inputs in given]))
    expected = [number for line in lines for number in numbers_of(json.loads(line))]
    assert of_logits(logits).flatten().tolist() == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [("regression", 1), ("not named", 1), ("multilabel", 1), ("multilabel", 3)],
)
def test_a_published_model_of_texts_answers_as_its_reference_does(transfer, tmp_path, kind, labels):
    lib = reference()
    problem, numbers_of, of_logits = OF_TEXTS[kind]
    publish(
        tmp_path / "published", "bert", "SequenceClassification", num_labels=labels,
        problem_type=problem,
    )  # fmt: skip
    (tmp_path / "new.txt").write_text(TEXT[0])
    tokenizer = lib.AutoTokenizer.from_pretrained("published")
    model = lib.AutoModelForSequenceClassification.from_pretrained("published").eval()
    with torch.no_grad():
        expected = of_logits(model(**tokenizer(TEXT[0], return_tensors="pt")).logits)

    ended = transfer("predict", "published", "new.txt", "device=cpu").ok()

    numbers = numbers_of(json.loads(ended.out))
    assert numbers == pytest.approx(expected[0].tolist(), abs=2e-5)


def test_a_published_head_of_several_numbers_is_not_read_as_classes(transfer, tmp_path):
    options = {"num_labels": 3, "problem_type": "regression"}
    publish(tmp_path / "published", "bert", "SequenceClassification", **options)
    (tmp_path / "new.txt").write_text(TEXT[0])
    transfer("predict", "published", "new.txt").refusal("without the head")


# --- numbers -------------------------------------------------------------------------------------


def test_new_pairs_get_numbers_and_runs_answer_with_their_mean(transfer, task_run, tmp_path):
    run = task_run("regression")
    (tmp_path / "new.csv").write_text("sentence1,sentence2\nthe red bridge,a bridge\n")

    one = transfer("predict", str(run), "new.csv", "device=cpu")
    two = transfer("predict", f"run=[{run},{run}]", "input=new.csv", "device=cpu")

    answer = json.loads(one.out)
    assert answer["value"] == pytest.approx(0.5, abs=0.7)
    assert (answer["text"], answer["pair"]) == ("the red bridge", "a bridge")
    assert json.loads(two.out)["value"] == pytest.approx(answer["value"], abs=1e-5)


@pytest.mark.slow
def test_what_an_export_leaves_out_is_said(transfer, task_words):
    words = task_words("regression")
    transfer(*words, "objective.clip=[1,2]", "loop.steps=2", "run.dir=run")

    for form in ("hf", "onnx"):
        ended = transfer("export", "run", f"to_{form}", f"format={form}")
        assert "left out  objective.clip, so that answers are not bounded" in ended.out


# --- several labels ------------------------------------------------------------------------------


def test_fitted_thresholds_are_stored_and_decide(task_run, read_json, transfer, tmp_path):
    run = task_run("multilabel")
    task = read_json(run / "model" / "model.json")["task"]

    assert len(task["fitted"]["thresholds"]) == 3
    assert task["fitted"]["thresholds"] != [0.5] * 3
    transfer("evaluate", str(run), "split=validation", "output=out.json", "device=cpu").ok()
    measures = read_json(tmp_path / "out.json")["measures"]["validation"]
    expected = read_json(run / "results.json")["measures"]["validation"]
    assert measures == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_a_run_that_goes_on_begins_without_them(transfer, task_words, read_json, tmp_path):
    words = task_words("multilabel")
    slow = (*words, "schedule=constant", "optimizer.lr=3e-4", "loop.evaluate_every=5 steps")
    transfer(*slow, "loop.steps=10", "run.dir=run")
    transfer(*slow, "loop.steps=20", "run.dir=whole")

    transfer("finetune", "resume=run", "loop.steps=20").ok()

    assert "thresholds" in read_json(tmp_path / "run" / "model" / "model.json")["task"]["fitted"]
    ours, theirs = (read_json(tmp_path / name / "results.json") for name in ("run", "whole"))
    assert ours["measures"] == theirs["measures"]
    records = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("run", "whole")]
    validations = [
        [line for line in map(json.loads, text.splitlines()) if "micro_f1" in str(line)]
        for text in records
    ]
    assert len(validations[0]) == 4
    assert validations[0] == validations[1]


def test_new_texts_get_labels_and_runs_answer_together(transfer, task_run, tmp_path):
    run = task_run("multilabel")
    (tmp_path / "new.txt").write_text("the blue bridge\nthe new bridge\n")

    one = transfer("predict", str(run), "new.txt", "device=cpu")
    two = transfer("predict", f"run=[{run},{run}]", "input=new.txt", "device=cpu")
    transfer("predict", str(run), "new.txt", "output=out.csv", "device=cpu").ok()

    first, second = map(json.loads, one.out.splitlines())
    assert (first["labels"], second["labels"]) == (["cold", "color"], [])
    assert list(first["probabilities"]) == ["age", "cold", "color"]
    assert one.out == two.out
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["labels"] for row in rows] == ["cold|color", ""]


@pytest.mark.slow
def test_a_run_on_a_column_for_each_label_scores_and_answers_tables(transfer, task_words, tmp_path):
    words = task_words("multilabel")
    rows = [f"the {PLACES[n % 4]} bridge {n},{n % 2},{int(n % 4 == 0)}" for n in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["text,even,fourth", *rows]) + "\n")
    rest = [word for word in words if not word.startswith(("data.", "objective.thresholds"))]
    transfer(*rest, "data.train=a.csv", "data.label=[even,fourth]", "loop.steps=2", "run.dir=run")

    scored = transfer("evaluate", "run", "a.csv")
    again = transfer("evaluate", "run", "a.csv", "label=[2,3]")
    answered = transfer("predict", "run", "a.csv", "output=answers.jsonl")

    assert [ended.code for ended in (scored, again, answered)] == [0, 0, 0], again.err
    assert again.out == scored.out
    assert "40 of 40" in scored.out
    first = json.loads((tmp_path / "answers.jsonl").read_text().splitlines()[0])
    assert set(first["probabilities"]) == {"even", "fourth"}


def test_a_linear_head_on_frozen_features_is_solved(transfer, task_words, read_json, tmp_path):
    words = task_words("multilabel")
    kept = [word for word in words if not word.startswith(("loop.", "optimizer."))]

    transfer(*kept, "experiment=quick", "run.dir=run").ok()

    measures = read_json(tmp_path / "run" / "results.json")["measures"]["validation"]
    assert measures["micro_f1"] > 0.9


def test_a_run_that_learnt_nothing_says_so(transfer, task_words):
    words = task_words("multilabel")
    ended = transfer(*words, "loop.steps=1", "optimizer.lr=1e-6", "objective.thresholds=null",
                     "run.dir=run")  # fmt: skip

    assert "no better than always answering" in ended.err


# --- choices -------------------------------------------------------------------------------------


def test_new_questions_are_answered_and_runs_answer_with_their_mean(transfer, task_run, tmp_path):
    run = task_run("choice")
    asked = choice(3)
    del asked["label"]
    (tmp_path / "new.jsonl").write_text(f"{json.dumps(asked)}\n")

    one = transfer("predict", str(run), "new.jsonl", "device=cpu")
    two = transfer("predict", f"run=[{run},{run}]", "input=new.jsonl", "keep=true", "device=cpu")

    assert one.code == two.code == 0, one.err + two.err
    answer, mean = json.loads(one.out), json.loads(two.out)
    assert answer["text"] == asked["context"]
    assert answer["answer"] == asked["choices"][answer["label"]]
    assert sum(answer["probabilities"]) == pytest.approx(1, abs=1e-5)
    assert len(answer["probabilities"]) == len(asked["choices"])
    assert mean["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-5)
    assert (mean["question"], mean["choices"]) == (asked["question"], asked["choices"])


def their_shares(folder, asked):
    """Return the probability of each choice from a model that transformers loads."""
    lib = reference()
    tokenizer = lib.AutoTokenizer.from_pretrained(folder)
    model = lib.AutoModelForMultipleChoice.from_pretrained(folder).eval()
    endings = [f"{asked['question']} {choice}" for choice in asked["choices"]]
    batch = tokenizer([asked["context"]] * len(endings), endings, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**{name: tensor[None] for name, tensor in batch.items()}).logits
    return logits.softmax(1)[0].tolist()


@pytest.mark.parametrize(
    "family",
    [
        "bert",
        "roberta",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("electra", "distilbert")),
    ],
)
def test_a_published_model_answers_as_there_and_is_written_as_it_was(transfer, tmp_path, family):
    theirs = publish(tmp_path / "published", family, "MultipleChoice")
    asked = {"context": TEXT[1], "question": "Who", "choices": TEXT[3:6]}
    (tmp_path / "new.jsonl").write_text(f"{json.dumps(asked)}\n")

    ended = transfer("predict", "published", "new.jsonl", "device=cpu")
    written = transfer("export", "published", "to")

    assert ended.code == written.code == 0, ended.err + written.err
    shares = json.loads(ended.out)["probabilities"]
    assert shares == pytest.approx(their_shares("published", asked), abs=2e-5)
    # A context that is too long is cut there as here, and no choice is.
    cut = json.loads((tmp_path / "to" / "tokenizer.json").read_text())["truncation"]
    assert cut is None or cut["strategy"] == "OnlyFirst"
    again = reference().AutoModelForMultipleChoice.from_pretrained("to").state_dict()
    expected = theirs.state_dict()
    for weights in (again, expected) if family == "roberta" else ():
        # No text has the first two positions, which are not read.
        name = "roberta.embeddings.position_embeddings.weight"
        weights[name] = weights[name][2:]
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())


# --- dialogs -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_speakers_have_embeddings_that_were_learnt(task_run):
    run = task_run("dialog")
    weights = load_file(run / "model" / "weights.safetensors")

    embeddings = weights["backbone.new_segments.weight"]
    assert embeddings.shape == (2, weights["backbone.token_embedding.weight"].shape[1])
    assert embeddings.any(1).all()
    assert (embeddings[0] != embeddings[1]).any()


def test_candidates_are_ranked(transfer, task_run, tmp_path):
    run = task_run("dialog")
    asked = turn(5)
    (tmp_path / "new.jsonl").write_text(f"{json.dumps(asked)}\n")

    ended = transfer("predict", str(run), "new.jsonl", "device=cpu").ok()

    answer = json.loads(ended.out)
    best, *_ = answer["ranking"]
    assert answer["text"] == asked["history"][-1]
    assert answer["reply"] == asked["candidates"][best]
    assert sorted(answer["ranking"]) == list(range(len(asked["candidates"])))
    shares = [answer["probabilities"][number] for number in answer["ranking"]]
    assert shares == sorted(shares, reverse=True)


@pytest.fixture
def talk(transfer, task_run, monkeypatch):
    """Return how to say some lines to the run."""
    run = task_run("dialog")

    def call(*lines, more=()):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return transfer("chat", str(run), "device=cpu", "max_tokens=8", *more)

    return call


def test_each_line_gets_a_reply_that_depends_on_what_was_said(talk):
    ended = talk("the red bridge ?", "", "the old bridge ?", more=["temperature=0"])
    alone = talk("the old bridge ?", more=["temperature=0", "persona=[the bridge is here .]"])

    assert ended.code == alone.code == 0, ended.err + alone.err
    first, second = ended.out.splitlines()
    assert (len(alone.out.splitlines()), len(ended.out.splitlines())) == (1, 2)
    assert first != second


def test_nothing_typed_is_the_end(talk):
    ended = talk()

    assert (ended.code, ended.out) == (0, "")
    talk(more=["system=Be brief."]).refusal("system: ", "persona=")


# --- texts made from others ----------------------------------------------------------------------


def test_the_head_of_the_language_model_is_taken_over(transfer, task_words, task_run, tmp_path):
    run = task_run("text_to_text")
    words = task_words("text_to_text")
    ended = transfer(*words, "loop.steps=1", "run.dir=first")
    again = transfer(*(f"init_from={run}" if word.startswith("init_from") else word
                       for word in words), "data.target_length=6", "loop.steps=1",
                     "run.dir=again")  # fmt: skip

    for outcome in (ended, again):
        assert outcome.code == 0, outcome.err
        assert "new: " not in outcome.out + outcome.err


def test_predict_and_generate_write_the_same(transfer, task_run, tmp_path):
    run = task_run("text_to_text")
    (tmp_path / "new.txt").write_text("the old bridge\nthe blue bridge\n")

    together = transfer("predict", str(run), "new.txt", "device=cpu")
    alone = transfer("predict", str(run), "new.txt", "device=cpu", "batch=1")

    answers = [json.loads(line)["answer"] for line in together.out.splitlines()]
    assert answers == ["old", "blue"]
    assert alone.out == together.out
    for cache in ("true", "false"):
        said = transfer("generate", str(run), "prompt=the old bridge", "temperature=0",
                        f"cache={cache}", "device=cpu")  # fmt: skip
        assert said.out.strip() == "old", said.err


def test_answers_are_looked_for_by_beams_alone_and_together(transfer, task_run, tmp_path):
    run = task_run("text_to_text")
    (tmp_path / "new.txt").write_text("the old bridge\nthe blue bridge\nbridge\n")

    together = transfer("predict", str(run), "new.txt", "beams=3", "device=cpu")
    alone = transfer("predict", str(run), "new.txt", "beams=3", "device=cpu", "batch=1")
    said = transfer("generate", str(run), "bridge", "beams=3", "device=cpu")

    answers = [json.loads(line)["answer"] for line in together.out.splitlines()]
    assert answers[:2] == ["old", "blue"]
    assert alone.out == together.out
    assert said.out.strip() == answers[2]


def test_as_many_examples_are_answered_as_is_said(transfer, task_run, read_json, tmp_path):
    run, words = task_run("text_to_text"), ("device=cpu", "split=validation", "output=out.json")

    whole = transfer("evaluate", str(run), "each=all.jsonl", *words).ok()
    some = transfer("evaluate", str(run), "evaluation.generate=5", "each=some.jsonl", *words).ok()

    assert "5 are answered" in some.out
    lines = [(tmp_path / name).read_text().splitlines() for name in ("all.jsonl", "some.jsonl")]
    assert {*lines[1]} < {*lines[0]}
    assert (
        len(lines[1]) == read_json(tmp_path / "out.json")["counts"]["validation"]["answered"] == 5
    )
    losses = [re.search(r" loss +(\S+)", ended.out)[1] for ended in (whole, some)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("kind", "words", "key"),
    [("text_to_text", "length_penalty=2", "length_penalty"), ("tagging", "beams=2", "beams"),
     ("tagging", "evaluation.generate=2", "evaluation.generate")],
)  # fmt: skip
def test_a_search_is_for_runs_that_write(transfer, task_run, kind, words, key):
    ended = transfer("evaluate", str(task_run(kind)), words, "device=cpu")

    assert ended.code == 2
    assert ended.err.startswith(f"transfer evaluate: {key}: ")


def test_the_source_of_a_table_is_found_by_its_name_or_typed(transfer, task_run, tmp_path):
    run = task_run("text_to_text")
    (tmp_path / "new.csv").write_text("id,source,text\n7,the old bridge,the blue bridge\n")

    by_name = transfer("predict", str(run), "new.csv", "device=cpu")
    typed = transfer("predict", str(run), "new.csv", "text=text", "device=cpu")

    assert [json.loads(ended.out)["answer"] for ended in (by_name, typed)] == ["old", "blue"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "typed"),
    [
        ("pretrain_mlm", ()),
        ("pretrain", ("objective=seq2seq", "loop.epochs=40", "optimizer.lr=1e-3")),
    ],
    ids=["masked", "causal, in both stacks"],
)
def test_a_language_model_learns_to_write(transfer, read_json, tmp_path, start, typed):
    transfer("pretrain", f"experiment=sample/{start}", "run.dir=start", "device=cpu").ok()
    words = ("finetune", "experiment=sample/text_pairs", "init_from=start", "device=cpu", *typed)

    exact = {}
    for init in ("pretrained", "scratch"):
        transfer(*words, f"init={init}", f"run.dir={init}").ok()
        exact[init] = read_json(tmp_path / init / "results.json")["measures"]["test"]["exact_match"]

    assert exact["pretrained"] > 0.5
    assert exact["scratch"] < 0.3


# --- pairs of texts ------------------------------------------------------------------------------


def test_the_sample_asks_for_one_kind_as_often_as_for_two():
    kinds, asked = sample.questions()
    kind_of = {text: label for rows in asked.values() for text, label in rows}

    for rows in sample.pairs().values():
        assert 2 * sum(is_same for *_, is_same in rows) == len(rows)
        assert all((kind_of[one] == kind_of[other]) == is_same for one, other, is_same in rows)
    assert len(kinds) == 6


def test_answers_to_a_test_set_of_glue_are_handed_in(transfer, tmp_path, tiny):
    train = [f'{n}\tx\tA {n} " dog\tB {n} , cat\t{n % 6}.5' for n in range(20)]
    test = [f'{n}\tx\tA {n} " dog\tB {n} , cat' for n in range(9)]
    header = "index\tgenre\tsentence1\tsentence2"
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("\n".join([f"{header}\tscore", *train]))
    (tmp_path / "test.tsv").write_text("\n".join([header, *test]))
    learn = ("init=scratch", "tokenizer=wordpiece", *tiny, "loop.steps=1", "device=cpu")
    task = ("data=glue", "data.task=stsb", "data.folder=.", "objective=regression")
    transfer("finetune", *task, *learn, "run.dir=run").ok()
    (tmp_path / "answers").mkdir()

    transfer(
        "predict", "run", "test.tsv", "output=answers", "output_format=glue", "device=cpu"
    ).ok()

    first, *rows = (tmp_path / "answers" / "STS-B.tsv").read_text().splitlines()
    assert first == "index\tprediction"
    assert [row.split("\t")[0] for row in rows] == [str(n) for n in range(9)]
    assert all(re.fullmatch(r"\d+\t[0-5]\.\d{3}", row) for row in rows)
    for words, said in (
        (("train.tsv", "keep=true"), "keep: output_format=glue has no columns but its own two"),
        (("none.tsv",), "none.tsv"),
        (("test.tsv", "text=sentence"), "line 2: no column 'sentence'; there are 'index'"),
    ):
        transfer("predict", "run", *words, "output_format=glue", "device=cpu").refusal(said)
    assert [path.name for path in (tmp_path / "answers").iterdir()] == ["STS-B.tsv"]
