"""Answers cut from texts, from the file to the prediction."""

import csv
import io
import json

import numpy as np
import pytest
import torch

from tests.published import publish, reference
from tests.task_kinds import CITIES, asked
from transfer_cli.config.locate import conf_dir

pytestmark = pytest.mark.functional

OF_WHOLE_TEXTS = {"distil", "self_training", "uda", "cvt", "pet"}
PRESETS = sorted({p.stem for p in (conf_dir() / "adaptation").glob("*.yaml")} - OF_WHOLE_TEXTS)


@pytest.fixture
def words(task_words):
    """Return a command line that fine-tunes a model for it."""
    return task_words("span")


@pytest.fixture
def run(task_run):
    """Return a finished run."""
    return task_run("span")


def test_answers_have_their_place_in_the_text(transfer, run, tmp_path):
    rows = [{"question": "Which city ?", "context": f" The  tower of {city} is old .", "n": 1}
            for city in CITIES]  # fmt: skip
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, rows)))

    ended = transfer("predict", str(run), "new.jsonl", "keep=true", "device=cpu")

    assert ended.code == 0, ended.err
    for line, row in zip(ended.out.splitlines(), rows, strict=True):
        found = json.loads(line)
        assert (found["text"], found["pair"], found["n"]) == (row["question"], row["context"], 1)
        assert row["context"][found["start"] : found["end"]] == found["answer"]
        assert found["answer"] in CITIES
        assert sum(each["probability"] for each in found["n_best"]) == pytest.approx(1, abs=1e-4)


def test_a_table_of_questions_gets_columns_of_answers(transfer, run, tmp_path):
    (tmp_path / "new.csv").write_text(
        "context,who,question\nThe tower of Riga is old .,me,Which city ?\nThe,you,Which ?\n"
    )

    ended = transfer("predict", str(run), "new.csv", "output_format=csv", "keep=true", "device=cpu")

    one, other = csv.DictReader(io.StringIO(ended.out))
    assert (one["answer"], one["start"], one["end"], one["who"]) == ("Riga", "13", "17", "me")
    assert (other["answer"], other["start"]) == ("", "")


def test_a_question_without_a_text_may_be_left_out(transfer, run, tmp_path):
    lines = [{"question": "Which ?"}, {"question": "Which ?", "context": "The tower of Riga ."}]
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, lines)))

    ended = transfer("predict", str(run), "new.jsonl", "pair=context", "errors=skip", "device=cpu")

    assert len(ended.out.splitlines()) == 1


def test_every_question_of_the_published_format_is_scored(transfer, run, read_json, tmp_path):
    found = [asked(n) for n in range(160)]
    paragraphs = [{"context": each["context"], "qas": [each]} for each in found]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))

    ended = transfer("evaluate", str(run), "squad.json", "output=out.json", "device=cpu")

    assert ended.code == 0, ended.err
    assert "input: scored 160 of 160 examples" in ended.out
    assert read_json(tmp_path / "out.json")["measures"]["input"]["exact_match"] > 90


def best_pair(start_T, end_T, first, past):
    """Return the best span between two positions."""
    pairs = [
        (float(start_T[i] + end_T[j]), i, j) for i in range(first, past) for j in range(i, past)
    ]
    return max(pairs)[1:]


@pytest.mark.parametrize("family", ["bert", "distilbert", "electra", "roberta"])
def test_a_published_model_answers_as_its_reference_does(transfer, tmp_path, family):
    lib = reference()
    publish(tmp_path / "published", family, "QuestionAnswering")
    asked, text = "Who wrote", "The river there is the Seine, in Paris."
    tokenizer = lib.AutoTokenizer.from_pretrained("published")
    model = lib.AutoModelForQuestionAnswering.from_pretrained("published").eval()
    given = tokenizer(asked, text, return_offsets_mapping=True, return_tensors="pt")
    offsets = given.pop("offset_mapping")[0].tolist()
    sequence = given.sequence_ids(0)
    with torch.no_grad():
        found = model(**given)
    first, past = sequence.index(1), len(sequence) - 1
    start, end = best_pair(found.start_logits[0], found.end_logits[0], first, past)

    (tmp_path / "new.jsonl").write_text(json.dumps({"question": asked, "context": text}))
    ended = transfer("predict", "published", "new.jsonl", "device=cpu")

    assert ended.code == 0, ended.err
    said = json.loads(ended.out)
    assert [said["start"], said["end"]] == [offsets[start][0], offsets[end][1]]
    assert said["answer"] == text[said["start"] : said["end"]]


@pytest.mark.slow
def test_what_is_exported_gives_the_same_scores(transfer, run):
    from transfer_cli.assembly.finished_run import open_trained
    from transfer_cli.engine.precision import Precision
    from transfer_cli.objectives.base import Encoding
    from transfer_cli.tasks.span.task import SpanExample

    runtime = pytest.importorskip("onnxruntime")
    trained = open_trained(str(run), Precision("fp32", torch.device("cpu")))
    example = SpanExample("Which city ?", "The tower of Riga is old .")
    data = trained.start.task.encode([example], trained.start.tokenizer, 24, "causal")
    batch = data.batch(np.array([0]))
    with torch.no_grad():
        top = Encoding(trained.model, batch).top
        expected = trained.model.heads["span"](top)

    ended = transfer("export", str(run), "to", "format=onnx")

    assert ended.code == 0, ended.err
    session = runtime.InferenceSession("to/model.onnx")
    given = {
        "input_ids": batch["tokens"].numpy(),
        "attention_mask": batch["mask"].long().numpy(),
    }
    found = torch.from_numpy(session.run(None, given)[0])
    assert torch.allclose(found, expected, atol=2e-5)


def test_a_published_model_is_adapted_and_exported_as_one(transfer, words, tmp_path):
    lib = reference()
    before = publish(tmp_path / "published", "bert", "QuestionAnswering")
    typed = [word for word in words if not word.startswith("init_from")]

    ended = transfer(*typed, "init_from=published", "adaptation=lora", "loop.steps=2",
                     "run.dir=run")  # fmt: skip

    assert ended.code == 0, ended.err
    assert "heads.span.weight" not in ended.err
    assert transfer("export", "run", "to").code == 0
    model = lib.AutoModelForQuestionAnswering.from_pretrained("to")
    assert type(model) is type(before)
    assert torch.allclose(model.qa_outputs.weight, before.qa_outputs.weight, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_adapts_it_beside_an_auxiliary_loss(
    transfer, words, adapting, preset, read_json
):
    asked = [word for word in adapting(preset) if word.startswith(("adapt", "streams", "data@"))]
    asked += ["adaptation.plan.count=1"] if preset == "top_k" else []
    asked += [] if preset in ("frozen", "feature_extraction") else ["+objective@losses.lm2=clm"]

    ended = transfer(*words, *asked, "loop.steps=12", "run.dir=run")

    assert ended.code == 0, ended.err
    assert 0 <= read_json("run/results.json")["measures"]["validation"]["f1"] <= 100


@pytest.mark.slow
@pytest.mark.parametrize(("start", "least"), [("pretrain", 90), ("pretrain_mlm", 80)])
def test_only_a_pretrained_model_answers_the_sample(transfer, read_json, tmp_path, start, least):
    found = {}
    transfer("pretrain", f"experiment=sample/{start}", "run.dir=start", "device=cpu")
    for init in ("pretrained", "scratch"):
        ended = transfer("finetune", "experiment=sample/spans", "init_from=start", f"init={init}",
                         f"run.dir={init}", "device=cpu")  # fmt: skip
        assert ended.code == 0, ended.err
        found[init] = read_json(tmp_path / init / "results.json")["measures"]["test"]

    assert found["pretrained"]["exact_match"] >= least  # measured: 97 to 100, 88 to 94
    assert found["scratch"]["exact_match"] <= 35  # measured: 19 to 26


def test_items_have_the_scores_of_the_run_and_a_threshold_is_fitted(run, read_json):
    measures = read_json(run / "results.json")["measures"]["validation"]
    items = [json.loads(line) for line in (run / "items.jsonl").read_text().splitlines()]

    assert "null_threshold" in read_json(run / "model" / "model.json")["task"]["fitted"]
    assert 100 * np.mean([item["score"] for item in items]) == pytest.approx(measures["f1"])
