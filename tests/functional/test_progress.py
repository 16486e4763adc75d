"""What takes long shows how far it is: each command counts up to the end that it foretold."""

import pytest

from tests.functional.conftest import LOOP
from transfer_cli import progress as module


@pytest.fixture
def shown(monkeypatch):
    """Return what would have been shown, however short: (total, done) by name."""
    found = {}

    def note(ended, what, total, unit, done):
        ended.wait()
        whole = total() if callable(total) else total
        found.setdefault(what, []).append((whole, done()))

    monkeypatch.setattr(module, "_show", note)
    return found


def test_text_is_counted_to_its_end(transfer, shown, corpus):
    words = ("data=text", f"data.train={corpus}", "data.validation_share=0.1", "tokenizer.size=600")

    transfer("prepare", *words, f"data_dir={corpus.parent / 'own'}").ok()

    assert shown["learning tokens"] == [(None, 0)]
    size = corpus.stat().st_size
    assert shown[f"reading {corpus}"] == [(size, size)]
    for what, share in (
        ("counting words", 0.9), ("encoding the train text", 0.9),
        ("encoding the validation text", 0.1),
    ):  # fmt: skip
        [(total, done)] = shown[what]
        assert total == round(share * size)
        assert done == pytest.approx(total, rel=0.2)


def test_an_adapted_model_is_scored_asked_and_exported_to_the_end(
    transfer, shown, pretrained, questions
):
    words = ("data=table", f"data.train={questions}", "adaptation=frozen", "loop.steps=4")
    transfer("finetune", *words, f"init_from={pretrained}", *LOOP, "run.dir=run").ok()
    transfer("predict", "run=[run,run]", f"input={questions}", "output=labels.csv")
    transfer("evaluate", "run=run")
    transfer("export", "run=run", "to=out")

    rows = 60
    [(total, done)] = shown.pop(f"reading {questions}")[:1]
    assert rows <= done <= total == rows + 1
    assert shown["exporting as hf"] == [(None, 0)]
    # A line holds the names of the columns.
    assert shown["predicting"] == [(2 * (rows + 1), 2 * rows)]
    for what in ("encoding", "features", "scoring validation"):
        for total, done in shown[what]:
            assert 0 < done == total, what


def test_fisher_information_is_counted(transfer, shown, pretrained):
    words = ("data=sample_questions", "adaptation=ewc")
    transfer(
        "finetune", *words, "adaptation.penalty.sequences=4", f"init_from={pretrained}", *LOOP,
        "loop.steps=1", "data_dir=own",
    ).ok()  # fmt: skip

    assert shown["Fisher information"] == [(4, 4)]


@pytest.mark.slow
def test_a_report_counts_runs_and_comparisons(transfer, shown, deep):
    for seed, rate in ((0, 0.01), (1, 0.01), (0, 0.02), (1, 0.02)):
        words = ("data=sample_questions", f"init_from={deep}", *LOOP, "loop.steps=2")
        transfer(
            "finetune",
            *words,
            f"optimizer.lr={rate}",
            f"seed={seed}",
            f"run.dir=runs/{rate}-{seed}",
        )

    transfer("report", "runs").ok()

    assert shown["reading"] == [(None, 4)]
    assert shown["comparing groups"] == [(2, 2)]
