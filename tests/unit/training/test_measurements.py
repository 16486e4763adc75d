"""What a finished run says about itself beyond its measures."""

import json
import sys
import types
from itertools import chain, repeat
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.assembly.datasets import PreparedData
from transfer_cli.config import compose
from transfer_cli.config.flags import Request
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.data.split import Split
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.engine.cost import Flops
from transfer_cli.engine.evaluation import Portion
from transfer_cli.engine.features.cached import CachedFeatures
from transfer_cli.model.readout import ScalarMix
from transfer_cli.objectives.base import ExampleResults
from transfer_cli.objectives.classification import Classification
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.items import Item
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.training import examples as items
from transfer_cli.training.console import accuracy_text, pace_text
from transfer_cli.training.measurements import hyperparameters, layer_shares, peak_memory
from transfer_cli.training.spending import Meter, Spending, device_meter

CONFIG = {
    "seed": 3,
    "data_dir": "/somewhere",
    "data": {"_target_": "a.B", "train": "few.csv", "text": "question", "validation": 0.1},
    "tokenizer": None,
    "optimizer": {"lr": 1e-3, "betas": [0.9, 0.999], "fused": True},
    "adaptation": {"plan": {"every": "1 epoch"}},
    "loop": {"cache": "far/away", "monitor": "x" * 300},
    "run": {"dir": "here"},
    "init_from": "there",
}


def test_plain_values_and_presets_are_listed_and_paths_are_not():
    values = hyperparameters(CONFIG, {"adaptation": "ulmfit"})

    assert values == {
        "seed": 3, "data.text": "question", "data.validation": 0.1, "tokenizer": "none",
        "optimizer.lr": 1e-3, "optimizer.fused": "true", "adaptation.plan.every": "1 epoch",
        "loop.monitor": "x" * 100, "adaptation": "ulmfit",
    }  # fmt: skip


@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_nothing_that_moves_a_run_is_listed(command):
    data = "sample_text" if command == "pretrain" else "sample_questions"
    config = compose.load_config(command, Request(overrides=(f"data={data}",)))

    values = hyperparameters(config, {})

    assert {key.partition(".")[0] for key in values} <= {
        "adaptation", "data", "init", "loop", "losses", "mixing", "model", "objective", "optimizer",
        "precision", "schedule", "seed", "streams", "tokenizer",
    }  # fmt: skip
    assert values["loop.batch"] == config.loop.batch
    assert all(isinstance(value, str | int | float) for value in values.values())


def test_a_learnt_mix_tells_how_much_each_layer_counts():
    model = tiny.model(Classification())
    assert layer_shares(model) is None

    mix = ScalarMix(4, norm=False)
    model.readout = mix
    with torch.no_grad():
        mix.weight.copy_(torch.tensor([0.0, 0.0, 0.0, 100.0]))

    assert layer_shares(model) == [0, 0, 0, 1]


def test_memory_is_in_bytes():
    assert peak_memory(torch.device("cpu")) > 50 * 2**20


# --- examples ------------------------------------------------------------------------------------


EXAMPLES = (
    Example("Where is it ?", label=1),
    Example("How many ?", label=0, pair="Some of them"),
    Example("a " * 300, label=1),
)
LABELS = ("number", "place")


TASK = ClassificationTask(LABELS)


def noted_items(split, outcomes, task=TASK):
    notes = items.outcome_collector(split)
    notes.note([(Portion.of(np.arange(len(split.data))), outcomes)])
    return items.collect_items(split, task, notes)


@pytest.fixture
def split():
    lines = ["Where is it ?", "How many ? Some of them", "a"]
    tokenizer = WordPiece(size=40).make(lambda: iter(lines))
    return Split("test", encode_texts(EXAMPLES, tokenizer, 32, "causal"))


CLASSES = ExampleResults(
    torch.tensor([0.1, 1 / 3, 2.0]), torch.ones(3),
    {"label": torch.tensor([1, 1, 0]), "probability": torch.tensor([0.9, 0.8, 0.7])},
)  # fmt: skip


def test_an_item_says_what_was_right_what_was_said_and_of_which_text(split):
    first, second, third = noted_items(split, CLASSES)

    assert first == Item("test", 0, "place", "place", 0.9, "Where is it ?", 0.1, 1)
    assert second == Item(
        "test", 1, "number", "place", 0.8, "How many ? / Some of them", 0.3333333, 1
    )
    assert len(third.text) == 500
    assert third.text.endswith(" ...")


def test_texts_whose_states_are_kept_are_found_too(split):
    model = tiny.model(Classification())
    features = CachedFeatures(split.data, model, tiny.FP32, batch=2, layers=(-1,))

    shown = noted_items(Split("test", features, without_states=split.data), CLASSES)

    assert [item.text[:5] for item in shown] == ["Where", "How m", "a a a"]


def test_a_language_model_has_no_labels(split):
    outcomes = ExampleResults(torch.tensor([3.0, 4.0, 5.0]), torch.tensor([2, 3, 4]))

    labelled, block = noted_items(split, outcomes), noted_items(blocks(), outcomes, None)

    for item in (*labelled, *block):
        assert (item.label, item.predicted, item.probability) == ("", "", 0.0)
    assert block[2] == Item("test", 2, "", "", 0.0, "", 5.0, 4)


def test_of_many_examples_no_texts_are_kept_and_of_very_many_nothing(split, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(items, "MOST_TEXTS", 2)
    assert {item.text for item in noted_items(split, CLASSES)} == {""}
    assert "no texts of the test split, which has more than 2 examples" in caplog.text

    monkeypatch.setattr(items, "MOST_ITEMS", 2)
    assert items.outcome_collector(split) is None
    assert items.collect_items(split, TASK, None) == []
    assert "nothing of the test split, which has more than 2 examples" in caplog.text


def blocks():
    data = tiny.blocks(tokens=48)
    assert len(data) == 3
    return Split("test", data, order=np.arange(3))


def test_words_are_compared_on_so_many_examples_at_most(split, monkeypatch):
    data = PreparedData({"train": split, "test": split}, TASK)
    whole = items.linear_baseline(data, "test")
    monkeypatch.setattr(items, "MAX_BASELINE_EXAMPLES", 2)
    some = items.linear_baseline(data, "test")

    assert whole == {"split": "test", "right": 3, "scored": 3, "trained_on": 3, "of": 3}
    assert some == {"split": "test", "right": 2, "scored": 2, "trained_on": 2, "of": 3}
    assert items.linear_baseline(PreparedData({"train": split}), "train") is None


# --- what is spent -------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def life(run, *, seconds, flops, joules=None, **co2):
    """Let a run go on for a while, and write down what it has spent; return that."""
    meter = Meter("nobody asked")
    if joules is not None:
        readings = iter((1_000, 1_000 + int(joules * 1_000)))
        nvml = SimpleNamespace(
            NVMLError=Exception, nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(readings)
        )
        meter = Meter("told", nvml)
    times = chain([0.0], repeat(seconds))
    spending = Spending(meter, clock=lambda: next(times), **co2)
    spending.load_earlier(run)
    assert spending.add(Flops(flops, 1)) == (flops, 1)
    spending.write(run)
    return json.loads(run.timing.read_text())["spent"]


def test_a_resume_adds_to_what_was_spent(run):
    life(run, seconds=10.0, flops=2**60 + 1, joules=5.0)

    spent = life(run, seconds=2.5, flops=3, joules=0.5)

    assert spent == {
        "device_seconds": 12.5, "flops": 2**60 + 4, "joules": 5.5, "joules_source": "told",
        "kg_co2": None,
    }  # fmt: skip


@pytest.mark.parametrize("energies", [(5.0, None), (None, 5.0)])
def test_energy_that_is_known_of_a_part_alone_is_not_told(run, energies):
    for joules in energies:
        spent = life(run, seconds=1.0, flops=1, joules=joules)

    assert spent["joules"] is None
    assert spent["device_seconds"] == 2.0
    assert spent["joules_source"] in (
        "nobody asked", "told, but not of all that came before a resume",
    )  # fmt: skip


def test_carbon_dioxide_is_by_the_users_own_numbers(run):
    spent = life(run, seconds=1.0, flops=1, joules=7.2e6, pue=1.5, kg_per_kwh=0.4)

    assert spent["kg_co2"] == pytest.approx(2 * 1.5 * 0.4)


@pytest.mark.parametrize("content", ["", "[]", '{"spent": 3}', '{"spent": {"flops": "many"}}'])
def test_what_cannot_be_read_of_earlier_counts_as_nothing(run, content):
    run.timing.write_text(content)

    spent = life(run, seconds=1.0, flops=7)

    assert (spent["flops"], spent["device_seconds"]) == (7, 1.0)


def test_a_note_is_due_twice_a_minute_and_holds_what_was_not_added_yet(run):
    now = 0.0
    spending = Spending(Meter("off"), clock=lambda: now)

    def is_due_at(seconds):
        nonlocal now
        now = seconds
        return spending.is_due()

    due = [is_due_at(seconds) for seconds in (1.0, 29.0, 31.0, 40.0, 61.5)]
    spending.write(run, Flops(11, 11))

    assert due == [False, False, True, False, True]
    assert json.loads(run.timing.read_text())["spent"]["flops"] == 11
    assert spending.record()["flops"] == 0


# --- energy ------------------------------------------------------------------------------------

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class NVMLError(Exception):
    pass


@pytest.fixture
def count(monkeypatch):
    """Return a function that puts a counter with these readings in the place of a GPU's."""

    def put(*readings):
        left = iter(readings)

        def read(handle):
            assert handle == "GPU-12-34"
            reading = next(left)
            if isinstance(reading, Exception):
                raise reading
            return reading

        package = types.ModuleType("pynvml")
        package.NVMLError = NVMLError
        package.nvmlInit = lambda: None
        package.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
        package.nvmlDeviceGetTotalEnergyConsumption = read
        monkeypatch.setitem(sys.modules, "pynvml", package)

    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-34")
    )
    return put


def test_a_gpu_counts_from_when_the_run_began(count):
    count(500_000, 500_500, 502_000)

    meter = device_meter(GPU)

    assert [meter.joules(), meter.joules()] == [0.5, 2.0]
    assert (meter.has_reading, meter.source) == (True, "nvml")


@pytest.mark.parametrize(("readings", "joules"), [((), [0.0]), ((5_000, 6_000), [1.0, 0.0, 0.0])])
def test_a_counter_that_is_not_there_or_goes_away_says_so_and_ends_all_numbers(
    count, readings, joules
):
    count(*readings, NVMLError("GPU is lost"))
    meter = device_meter(GPU)

    assert [meter.joules() for _ in joules] == joules
    assert (meter.has_reading, meter.source) == (False, "NVML: GPU is lost")


@pytest.mark.parametrize(("device", "why"), [(GPU, "pip install nvidia-ml-py"), (CPU, "GPU")])
def test_where_nobody_counts_it_is_said_why(device, why, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    meter = device_meter(device)

    assert (meter.has_reading, meter.joules()) == (False, 0.0)
    assert why in meter.source


# --- what is printed -----------------------------------------------------------------------------


TABLE, NAMES = [[45, 5], [15, 135]], ["spam", "no\nspam"]


def test_a_table_of_what_became_of_each_label_is_put_into_words():
    assert accuracy_text(TABLE, NAMES) == (
        "of 100 such texts about 90 get the right label (85 to 93, by these 200); always saying "
        "'no spam' gets 75 right"
    )


@pytest.mark.parametrize(
    ("right", "ending"),
    [
        (150, "gets 75 right, a linear model on words 75"),
        (180, "a linear model on words 90"),
        (190, "a linear model on words 95, more than this model"),
    ],
)
def test_a_model_that_words_alone_would_beat_is_told_so(right, ending):
    by_words = {"right": right, "scored": 200, "trained_on": 900, "of": 900}

    assert accuracy_text(TABLE, NAMES, by_words).endswith(ending)


def test_what_was_compared_is_said_and_equal_texts_make_an_interval_no_narrower():
    by_words = {"right": 190, "scored": 200, "trained_on": 10, "of": 25, "different": 50}

    text = accuracy_text(TABLE, NAMES, by_words)

    assert text.endswith("words 95 (fitted on 10 of 25 texts), more than this model")
    assert "about 90 get the right label (79 to 96, by these 200, 50 of them different)" in text


@pytest.mark.parametrize(
    ("waited", "peak", "said", "not_said"),
    [
        (0.015, 1e15, ["800,000 tokens/s", "TFLOP/s (MFU 24 %)", "waits 75 %"], "loop.batch"),
        (0.0, None, ["240.0 TFLOP/s", "loop.batch=128 optimizer.lr=0.0028", "estimated"], "MFU"),
    ],
)
def test_a_gpu_that_waits_for_its_host_is_offered_a_larger_batch(waited, peak, said, not_said):
    text = pace_text(0.02, waited, 16_000, 4.8e12, peak=peak, batch=64, rate=2e-3)

    assert all(part in text for part in said)
    assert not_said not in text
