"""Questions with choices, from the file to the prediction."""

import json
import re
import shlex
import signal

import pytest
import torch

from tests.published import TEXT, publish, reference
from transfer_cli.config.locate import conf_dir

pytestmark = pytest.mark.functional

PLACES = ("red", "blue", "old", "new")


def question(number):
    """Return a question with two to four choices, of which one has a word of its own."""
    count, own = 2 + number % 3, PLACES[number % 4]
    others = [each for each in PLACES if each != own][: count - 1]
    right = number % count
    choices = [*others[:right], f"very {own}", *others[right:]]
    return {"context": f"the {own} bridge", "question": "it is", "choices": choices, "label": right}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return JSON lines whose contexts tell the right choice."""
    path = tmp_path_factory.mktemp("choices") / "own.jsonl"
    path.write_text("".join(f"{json.dumps(question(n))}\n" for n in range(120)))
    return path


@pytest.fixture(scope="module")
def words(pretrained, file, loop):
    """Return a command line that fine-tunes on them."""
    return ("finetune", "data=choices", "objective=choice", f"data.train={file}", *loop,
            f"init_from={pretrained}", "optimizer.lr=3e-3", "loop.steps=30", "loop.batch=16",
            "loop.evaluate_every=15 steps", "checkpoint.every=15 steps")  # fmt: skip


@pytest.fixture(scope="module")
def run(words, tmp_path_factory):
    """Return a finished run."""
    from tests.functional.conftest import finished

    place = tmp_path_factory.mktemp("runs") / "choices"
    finished(*words, f"run.dir={place}")
    return place


def test_choices_are_learnt_and_measured_beside_chance(run, read_json):
    results = read_json(run / "results.json")

    measures = results["measures"]["validation"]
    assert measures["accuracy"] > 0.9 > 0.6 > measures["chance"]
    assert 1 <= measures["mean_rank"] < 1.2
    assert [each["name"] for each in results["metrics"] if each["headline"]] == ["accuracy"]


def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    transfer, words, run, at_record, tmp_path, read_json
):
    at_record("after", "validation", 15, lambda: signal.raise_signal(signal.SIGTERM))
    assert transfer(*words, "run.dir=again").code == 75
    ended = transfer("finetune", "resume=again")

    assert ended.code == 0, ended.err
    ours, theirs = (read_json(place / "results.json") for place in (tmp_path / "again", run))
    assert ours["measures"] == theirs["measures"]


def test_each_example_has_its_item(run):
    items = [json.loads(line) for line in (run / "items.jsonl").read_text().splitlines()]

    assert {item["label"] for item in items} <= {f"very {word}" for word in PLACES}
    assert all(f"/ {item['label']}" in item["text"] for item in items)
    assert {item["score"] for item in items} <= {0.0, 1.0}


def test_new_questions_are_answered_and_runs_answer_with_their_mean(transfer, run, tmp_path):
    asked = question(3)
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


def test_every_question_of_a_file_is_scored(transfer, run, file, read_json, tmp_path):
    ended = transfer("evaluate", str(run), str(file), "output=out.json", "device=cpu")

    assert ended.code == 0, ended.err
    assert "input: scored 120 of 120 examples" in ended.out
    assert read_json(tmp_path / "out.json")["measures"]["input"]["accuracy"] > 0.9


def test_a_file_without_choices_is_not_answered(transfer, run, tmp_path):
    (tmp_path / "new.txt").write_text("the red bridge\n")
    (tmp_path / "new.jsonl").write_text('{"context": "the red bridge", "choices": ["red"]}\n')

    for name, said in (
        ("new.txt", "new.txt: no columns"),
        ("new.jsonl", "line 1: 'choices' has 1"),
    ):
        ended = transfer("predict", str(run), name, "device=cpu")
        assert ended.code == 2
        assert said in ended.err
        assert not ended.out


def test_data_are_looked_at(transfer, pretrained, file):
    ended = transfer("inspect", "data=choices", f"data.train={file}", f"init_from={pretrained}")

    assert ended.code == 0, ended.err
    assert "  very red: the red bridge | it is | very red | blue" in ended.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["objective=classification"], "choose objective=choice"),
        (["data.format=swg"], "data.format: expected one of auto, jsonl, swag"),
        (["data.format=swag"], "own.jsonl, line 1: no column 'sent1'"),
    ],
)
def test_what_does_not_fit_is_refused(transfer, words, more, said, tmp_path):
    ended = transfer(*words, *more, "run.dir=run")

    assert ended.code == 2
    assert said in ended.err
    assert list(tmp_path.iterdir()) == []


def their_shares(folder, asked, **options):
    """Return the probability of each choice from a model that transformers loads."""
    lib = reference()
    tokenizer = lib.AutoTokenizer.from_pretrained(folder)
    model = lib.AutoModelForMultipleChoice.from_pretrained(folder, **options).eval()
    endings = [f"{asked['question']} {choice}" for choice in asked["choices"]]
    batch = tokenizer([asked["context"]] * len(endings), endings, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**{name: each[None] for name, each in batch.items()}).logits
    return logits.softmax(1)[0].tolist()


@pytest.mark.slow
def test_what_is_exported_answers_as_here(transfer, run, tmp_path):
    asked = question(5)
    (tmp_path / "new.jsonl").write_text(f"{json.dumps(asked)}\n")
    own = json.loads(transfer("predict", str(run), "new.jsonl", "device=cpu").out)

    ended = transfer("export", str(run), "to")

    assert ended.code == 0, ended.err
    # A context that is too long is cut there as here, and no choice is.
    cut = json.loads((tmp_path / "to" / "tokenizer.json").read_text())["truncation"]
    assert (cut["strategy"], cut["max_length"]) == ("OnlyFirst", 64)
    shares = their_shares("to", asked, trust_remote_code=True)
    assert shares == pytest.approx(own["probabilities"], abs=1e-5)


@pytest.mark.parametrize("family", ["bert", "electra", "distilbert", "roberta"])
def test_a_published_model_answers_as_there_and_is_written_as_it_was(transfer, tmp_path, family):
    theirs = publish(tmp_path / "published", family, "MultipleChoice")
    asked = {"context": TEXT[1], "question": "Who", "choices": TEXT[3:6]}
    (tmp_path / "new.jsonl").write_text(f"{json.dumps(asked)}\n")

    ended = transfer("predict", "published", "new.jsonl", "device=cpu")
    written = transfer("export", "published", "to")

    assert ended.code == written.code == 0, ended.err + written.err
    found = json.loads(ended.out)["probabilities"]
    assert found == pytest.approx(their_shares("published", asked), abs=2e-5)
    again = reference().AutoModelForMultipleChoice.from_pretrained("to").state_dict()
    expected = theirs.state_dict()
    for weights in (again, expected) if family == "roberta" else ():
        # No text has the first two positions, which are not read.
        name = "roberta.embeddings.position_embeddings.weight"
        weights[name] = weights[name][2:]
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[name], each) for name, each in expected.items())


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_do_what_one_does(shell, transfer, words, tmp_path, read_json):
    fixed = (*words, "objective.dropout=0", "adaptation=frozen", "loop.micro_batch=3")
    assert transfer(*fixed, "run.dir=one").code == 0
    ended = shell(*fixed, "run.dir=two", "devices=2")
    assert ended.wait(240) == 0, ended.stderr.read()
    ended.communicate()

    one, two = (
        read_json(tmp_path / run / "results.json")["measures"]["validation"]
        for run in ("one", "two")
    )
    assert one == pytest.approx(two, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["frozen", "lora", "adapters", "gradual_unfreezing", "ulmfit"])
def test_every_kind_of_scheme_learns_choices(transfer, words, scheme, read_json, tmp_path):
    ended = transfer(*words, f"adaptation={scheme}", "run.dir=run")

    assert ended.code == 0, ended.err
    assert read_json(tmp_path / "run" / "results.json")["measures"]["validation"]["loss"] < 2


@pytest.mark.slow
def test_every_command_of_the_page_runs(transfer, tmp_path):
    page = (conf_dir().parent / "docs" / "tasks" / "choices.md").read_text(encoding="utf-8")
    typed = [shlex.split(line) for line in re.findall(r"^\$ transfer (.+)$", page, re.MULTILINE)]
    asked = re.findall(r"^(\{.+\})$", page, re.MULTILINE)[-1]
    (tmp_path / "questions.jsonl").write_text(f"{asked}\n")

    for words in typed[1:]:  # the first is about a file of one's own
        ended = transfer(*words, *([] if words[0] == "export" else ["device=cpu"]))
        assert ended.code == 0, (words, ended.err)

    assert {words[0] for words in typed} == {
        "pretrain",
        "finetune",
        "evaluate",
        "predict",
        "export",
    }
    measures = json.loads((tmp_path / "runs" / "choices" / "results.json").read_text())["measures"]
    assert measures["test"]["accuracy"] > 0.9
