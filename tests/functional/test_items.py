"""`items.jsonl` and TensorBoard's HParams: what a run leaves for those who compare runs."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from transfer_cli.runs.items import read_items


def items_of(run, split):
    return list(read_items(Path(run) / "items.jsonl", split))


def check(run, results, split):
    """Hold a split's items to its measures; return them."""
    found, measures = items_of(run, split), results["measures"][split]
    assert [item.index for item in found] == list(range(len(found)))
    total, targets = (sum(getattr(item, name) for item in found) for name in ("loss", "targets"))
    assert total / targets == pytest.approx(measures["loss"], rel=1e-6)
    if "error_rate" in measures:
        wrong = sum(item.predicted != item.label for item in found)
        assert 100 * wrong / len(found) == pytest.approx(measures["error_rate"])
        table = results["tables"][split]["confusion"]
        assert len(found) == sum(map(sum, table))
    return found


@pytest.mark.parametrize("split", ["validation", "test"])
def test_items_of_fine_tuning_are_what_the_measures_are_made_of(finetuned, read_json, split):
    found = check(finetuned, read_json(finetuned / "results.json"), split)

    for item in found:
        assert item.label
        assert item.text
        assert item.targets == 1
        assert 1 / 6 <= item.probability <= 1


@pytest.mark.parametrize("split", ["validation", "test"])
def test_items_of_pretraining_are_blocks_without_text(pretrained, read_json, split):
    found = check(pretrained, read_json(pretrained / "results.json"), split)

    assert {item.targets for item in found[:-1]} == {32}
    assert {(item.label, item.predicted, item.text) for item in found} == {("", "", "")}


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (["loop.evaluate_every=9 epochs"], 1),
        (["loop.evaluate_every=1 epoch", "loop.monitor=error_rate", "optimizer.lr=1e-12"], 3),
    ],
    ids=["the last weights are the best", "the first are"],
)
def test_validation_is_scored_again_only_if_other_weights_are_the_best(
    words, times, transfer, adapting, read_json, monkeypatch
):
    from transfer_cli.training import trainer

    evaluate, scored = trainer.evaluate, []

    def counting(model, objective, split, **rest):
        scored.append(split.name)
        return evaluate(model, objective, split, **rest)

    monkeypatch.setattr(trainer, "evaluate", counting)
    transfer("finetune", *adapting(), "loop.epochs=2", "loop.steps=null", *words, "run.dir=r").ok()

    assert scored.count("validation") == times
    check(Path("r"), read_json(Path("r/results.json")), "validation")


@pytest.mark.parametrize("preset", ["frozen", "lm_auxiliary"])
def test_items_with_kept_states_and_with_further_losses(preset, adapted, read_json):
    run = adapted(preset).run

    found = check(run, read_json(run / "results.json"), "validation")

    assert all(item.text for item in found)
    assert items_of(run, "test") == []


def test_a_pair_is_shown_as_two_texts(transfer, deep, tmp_path, loop):
    rows = [f"A {n} ?,B {n} .,{('yes', 'no')[n % 2]}" for n in range(30)]
    Path("pairs.csv").write_text("\n".join(["text,pair,label", *rows]))
    words = ("data=table", "data.train=pairs.csv", "data.pair=pair", "data.validation_share=0.2")

    transfer("finetune", *words, f"init_from={deep}", *loop, "loop.steps=1", "run.dir=run").ok()

    found = items_of("run", "validation")
    assert len(found) == 6
    for item in found:
        number = item.text.split()[1]
        assert item.text == f"A {number} ? / B {number} ."
        assert item.label == ("yes", "no")[int(number) % 2]


# --- TensorBoard's HParams ---------------------------------------------------------------------


def test_final_measures_stand_beside_the_hyper_parameters(finetuned, read_json):
    found = EventAccumulator(str(finetuned / "tensorboard")).Reload()

    measures = read_json(finetuned / "results.json")["measures"]
    for split in ("validation", "test"):
        for name in ("loss", "error_rate"):
            (point,) = found.Scalars(f"weights_kept/{split}/{name}")
            assert point.step == 6
            assert point.value == pytest.approx(measures[split][name])
    assert not [
        tag for tag in found.Tags()["scalars"] if tag.startswith("weights_kept/test/accuracy/")
    ]


def test_a_finished_run_that_goes_on_is_listed_once_with_its_last_measures(
    transfer, adapting, read_json
):
    words = ("finetune", *adapting("full"), "schedule=constant", "run.dir=run")
    transfer(*words, "loop.steps=3").ok()
    transfer("finetune", "resume=run", "loop.steps=6").ok()

    found = EventAccumulator("run/tensorboard").Reload()

    (point,) = found.Scalars("weights_kept/validation/loss")
    assert point.step == 6
    wanted = read_json("run/results.json")["measures"]["validation"]["loss"]
    assert point.value == pytest.approx(wanted)
    assert [path.name for path in Path("run/tensorboard").iterdir() if path.is_dir()] == []
    starts = [
        event
        for path in Path("run/tensorboard").iterdir()
        for event in _events(path)
        if any(value.tag == "_hparams_/session_start_info" for value in event.summary.value)
    ]
    assert len(starts) == 1
    assert json.loads(Path("run/items.jsonl").read_text().splitlines()[0])["split"] == "validation"


def _events(path):
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    return LegacyEventFileLoader(str(path)).Load()
