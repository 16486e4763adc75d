"""What every folder uses: metrics, errors, lengths, seeds, batches."""

import errno
import json
import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import tiny
from tests.fuzzing import damaged, fuzz, memory_up_to
from transfer_cli.batch import (
    IGNORE,
    is_padded,
    rows_with_target,
    select_rows,
    to_device,
    with_facts,
)
from transfer_cli.engine import evaluation
from transfer_cli.engine.evaluation import MAX_ROWS, USUAL_ROWS, inference_batch_size, predictions
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import (
    ConfigError,
    above_zero,
    at_least,
    did_you_mean,
    list_names,
    one_of,
    pip_install,
)
from transfer_cli.fitting import halve_if_out_of_memory, rows_that_fit
from transfer_cli.lengths import Length
from transfer_cli.metrics import (
    Metric,
    find_metric,
    headlines_first,
    require_metric,
    wilson_interval,
)
from transfer_cli.objectives.classification import Classification
from transfer_cli.safe_files import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    UnreadableError,
    check_field_types,
    escaped,
    markdown_code,
    markdown_row,
    markdown_text,
    parse_json,
    printable,
    read_json,
    read_text,
    spreadsheet_cell,
)
from transfer_cli.seeds import ExampleNoise, derive

ACCURACY = Metric("accuracy", higher_is_better=True, unit="fraction", headline=True)
LOSS = Metric("loss", higher_is_better=False, unit="nats", per_example=True)
DECLARED = (LOSS, ACCURACY, LOSS.for_loss("order"))


def test_a_metric_is_the_same_after_json():
    record = json.loads(json.dumps(asdict(ACCURACY)))

    assert Metric.from_json(record) == ACCURACY
    assert Metric.from_json({**record, "a later key": 1}) == ACCURACY


@pytest.mark.parametrize(
    "record",
    [
        None, [], {}, {"name": "x"}, {"name": 3, "higher_is_better": True},
        {"name": "x", "higher_is_better": 1}, {"name": "", "higher_is_better": True},
        {"name": "x", "higher_is_better": True, "unit": "metres"},
        {"name": "x", "higher_is_better": True, "unit": []},
    ],
)  # fmt: skip
def test_what_is_no_record_of_a_metric_is_refused(record):
    with pytest.raises(ValueError, match=r"metric|metres|name"):
        Metric.from_json(record)


def test_an_unknown_unit_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"f1: 'percents' is not one of .* Did you mean 'percent'"):
        Metric("f1", higher_is_better=True, unit="percents")


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("accuracy/city/north", replace(ACCURACY, name="accuracy/city/north", headline=False)),
        ("order/loss", replace(LOSS, name="order/loss", per_example=False)),
        ("accuracy_of_all", None),
        ("order", None),
    ],
)
def test_a_part_of_a_metric_is_as_good_as_the_metric_and_no_headline(name, metric):
    assert find_metric(name, DECLARED) == metric


def test_a_metric_that_is_not_declared_is_refused_with_the_nearest():
    with pytest.raises(ConfigError) as refused:
        require_metric("acuracy", DECLARED, "loop.monitor")

    assert str(refused.value) == (
        "loop.monitor: there is no measure 'acuracy'. Did you mean 'accuracy'? "
        "This run measures loss, accuracy, order/loss"
    )


def test_headlines_are_preferred_and_the_others_keep_their_order():
    assert headlines_first(DECLARED) == [ACCURACY, LOSS, DECLARED[2]]


@pytest.mark.parametrize(
    ("right", "total", "interval"),
    [(81, 263, (0.2553, 0.3662)), (0, 20, (0.0, 0.1611)), (20, 20, (0.8389, 1.0))],
)
def test_the_interval_of_a_share_is_the_published_one(right, total, interval):
    assert wilson_interval(right, total) == pytest.approx(interval, abs=1e-4)


# --- errors --------------------------------------------------------------------------------------


def test_the_closest_name_is_proposed_and_none_where_none_is_close():
    assert did_you_mean("clss", ["cls", "mean"]) == " Did you mean 'cls'?"
    assert did_you_mean("cls", ["a-much-longer-name"]) == ""


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        (map(str, range(2003)), "0, 1, 2 and 2,000 more"),
    ],
)
def test_of_many_names_a_few_are_listed_and_the_rest_counted(names, text):
    assert list_names(names) == text


def test_what_is_no_choice_is_refused_with_the_choices_and_the_closest():
    one_of("split", "test", ("test", "train"))

    with pytest.raises(ConfigError) as raised:
        one_of("split", "tst", ("test", "train"))

    assert str(raised.value) == "split: 'tst' is not one of test, train. Did you mean 'test'?"


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_what_is_too_small_or_not_finite_is_refused(value):
    at_least("size", 1, 1)
    at_least("keep", 0, 0)
    above_zero("rate", 1e-9)

    with pytest.raises(ValueError, match=f"size must be at least 1, got {value}"):
        at_least("size", value, 1)
    with pytest.raises(ValueError, match="keep must be 0 or more, got -1"):
        at_least("keep", -1, 0)
    with pytest.raises(ConfigError, match=f"rate: must be above 0, got {value}"):
        above_zero("rate:", value, ConfigError)


def test_what_an_extra_needs_is_named_by_its_packages_and_not_by_a_name_that_is_not_published():
    assert pip_install("hf") == "pip install 'huggingface_hub>=0.30'"
    assert "'onnx>=1.18'" in pip_install("onnx")
    assert "transfer" not in pip_install("report")


# --- lengths -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "steps"),
    [("1 step", 1), ("500 steps", 500), ("1 epoch", 40), ("2 epochs", 80), ("0.5 epochs", 20),
     (" 3 steps ", 3), ("0.01 epochs", 1), ("1.01 epochs", 41)],
)  # fmt: skip
def test_lengths_and_rhythms_are_read_as_people_write_them(text, steps):
    assert Length.parse(text).steps(40) == Length.parse_interval(text).steps(40) == steps
    assert Length.parse("rest").steps(40) is None


@pytest.mark.parametrize(
    "text",
    ["", "5", "steps", "-1 steps", "0 steps", "1.5 steps", "0 epochs", "3 weeks", "1 epoch x",
     "0%", "101%", "-5%", "% 5", "20 percent", "automatic"],
)  # fmt: skip
def test_what_is_no_length_is_refused_by_name(text):
    for parse in (Length.parse, Length.parse_interval):
        with pytest.raises(ValueError, match=f"{text!r} is no length"):
            parse(text)


@given(st.integers(1, 1000), st.integers(1, 10_000))
def test_whole_epochs_are_exactly_so_many_steps(epochs, steps_per_epoch):
    assert Length(epochs, "epochs").steps(steps_per_epoch) == epochs * steps_per_epoch


@given(st.floats(0.001, 100), st.integers(1, 1000))
def test_a_length_is_never_empty_and_never_a_step_too_long(epochs, steps_per_epoch):
    steps = Length(epochs, "epochs").steps(steps_per_epoch)

    assert 1 <= steps < epochs * steps_per_epoch + 1


@pytest.mark.parametrize(
    ("text", "steps"),
    [("500 steps", 500), ("2 epochs", 80), ("rest", None), ("auto", 54), ("20%", 184),
     (" 12.5 % ", 115), ("100%", 921), ("0.01%", 1)],
)  # fmt: skip
def test_a_stage_has_its_length_in_a_run_of_921_steps_and_17_stages(text, steps):
    assert Length.parse(text).resolve(40, total=921, stages=17) == steps


@given(st.integers(1, 100))
def test_percents_of_a_hundred_steps_are_exactly_so_many(percent):
    assert Length.parse(f"{percent}%").resolve(1, total=100, stages=1) == percent


@given(st.integers(1, 5000), st.integers(1, 40))
def test_equal_shares_fill_a_run_and_never_exceed_it(total, stages):
    share = Length.parse("auto").resolve(40, total, stages)

    assert share >= 1
    if total >= stages:
        assert total - stages < share * stages <= total


@pytest.mark.parametrize("text", ["20%", "auto"])
def test_a_share_has_no_length_without_a_run_and_is_no_rhythm(text):
    with pytest.raises(ValueError, match="use resolve"):
        Length.parse(text).steps(40)
    for other in (text, "rest"):
        with pytest.raises(ValueError, match=f"'{other}' is no length"):
            Length.parse_interval(other)


# --- seeds ---------------------------------------------------------------------------------------


def test_derived_seeds_are_the_same_on_every_machine_and_in_every_version():
    assert derive(0, "weights") == 4283426181684004966
    assert derive(42, "order", 3) == 8019350747492242944


@given(st.integers(0, 2**63), st.lists(st.one_of(st.integers(), st.text())))
def test_derived_seeds_fit_every_generator(seed, parts):
    assert 0 <= derive(seed, *parts) < 2**63


def test_different_purposes_get_unrelated_seeds():
    asked = [(seed, name, step) for seed in range(5) for name in "ab" for step in range(100)]

    assert len({derive(*purpose) for purpose in asked}) == len(asked)


@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 4))
def test_a_longer_length_extends_the_numbers_of_a_shorter_one(more, length, channels):
    noise, index = ExampleNoise(0, "train", 7), torch.tensor([3, 11])

    short, long = (noise.uniform(index, n, channels) for n in (length, length + more))

    assert torch.equal(long[:, :length], short)


def test_noise_belongs_to_the_example_and_not_to_its_batch():
    noise = ExampleNoise(0, "train", 7)

    together = noise.uniform(torch.tensor([5, 2, 9]), 20, 2)

    assert torch.equal(noise.uniform(torch.tensor([9]), 20, 2)[0], together[2])


def test_noise_differs_between_examples_steps_and_seeds():
    drawn = [
        ExampleNoise(seed, "train", step).uniform(torch.arange(2), 8, 1)
        for seed in range(2)
        for step in range(2)
    ]

    assert len(torch.cat(drawn).unique(dim=0)) == 8


def test_noise_is_uniform_between_0_and_1():
    drawn = ExampleNoise(0).uniform(torch.arange(100), 1000, 1)

    assert 0 <= drawn.min() < 0.001
    assert 0.999 < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.005


def test_noise_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)

    ExampleNoise(0).uniform(torch.arange(3), 5, 1)

    assert torch.equal(torch.rand(1), expected)


# --- batch ---------------------------------------------------------------------------------------


def test_what_the_host_knows_of_a_batch_stays_on_the_host():
    nowhere = torch.device("meta")
    full, padded = tiny.rows_to_batch([[5, 6], [7, 8]]), tiny.rows_to_batch([[5, 6], [7]])
    target = torch.tensor([[IGNORE, 6], [7, IGNORE]])

    moved = [
        to_device(with_facts({**batch, "target": target}), nowhere) for batch in (full, padded)
    ]

    assert [is_padded(batch) for batch in moved] == [is_padded(full), is_padded(padded)]
    assert [is_padded(batch) for batch in moved] == [False, True]
    assert all(batch["tokens"].device == nowhere for batch in moved)


def test_rows_with_a_target_are_counted_through_the_batch():
    batch = {**tiny.rows_to_batch([[5, 6], [7, 8]]), "target": torch.tensor([[-100, 6], [7, -100]])}

    assert rows_with_target(batch).tolist() == [1, 2]
    assert with_facts(batch)["target_rows"].tolist() == [1, 2]


def test_where_all_rows_are_asked_for_nothing_is_copied():
    values = torch.randn(3, 2)

    assert select_rows(values, torch.arange(3)) is values
    assert select_rows(values, torch.tensor([0, 2])).equal(values[[0, 2]])


# --- what fits into memory -----------------------------------------------------------------------


CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("room", "rows"), [(64, 64), (63, 32), (31, 16), (0, 1)])
def test_a_batch_is_halved_until_there_is_room(room, rows):
    assert rows_that_fit(64, room, float) == rows


@pytest.mark.parametrize(("fits", "sizes"), [(9, [9]), (4, [3, 2, 4]), (1, [1] * 9)])
def test_where_memory_runs_out_halves_pass(fits, sizes):
    def work(rows):
        if len(rows) > fits:
            raise torch.OutOfMemoryError
        return len(rows)

    parts = list(halve_if_out_of_memory(np.arange(9), work))

    assert [made for _, made in parts] == sizes
    assert np.concatenate([rows for rows, _ in parts]).tolist() == list(range(9))
    with pytest.raises(torch.OutOfMemoryError):
        list(halve_if_out_of_memory(np.arange(9), lambda rows: work(np.arange(10))))


@pytest.mark.parametrize(
    ("asked", "device", "free", "rows"),
    [
        (7, GPU, 0, 7),
        ("auto", CPU, 0, USUAL_ROWS),
        ("auto", GPU, 1e12, MAX_ROWS),
        ("auto", GPU, 0, USUAL_ROWS),
    ],
)
def test_auto_takes_what_fits_into_a_gpu(asked, device, free, rows, monkeypatch):
    monkeypatch.setattr(evaluation, "free_bytes", lambda device: free)

    assert inference_batch_size(asked, tiny.model(Classification()), device) == rows


def test_measures_and_predictions_without_memory_are_those_with_it(monkeypatch):
    objective, data = Classification(), tiny.Questions(examples=20)
    model = tiny.model(objective)

    def scored():
        rows = predictions(model, objective, data, batch=8, precision=Precision("fp32", CPU))
        parts = [answers["probabilities"] for _, answers in rows]
        return tiny.measures(model, objective, data), torch.cat(parts), len(parts)

    measures, probabilities, parts = scored()
    to_device = evaluation.to_device

    def hungry(batch, device):
        if len(batch["tokens"]) > 4:
            raise torch.OutOfMemoryError
        return to_device(batch, device)

    monkeypatch.setattr(evaluation, "to_device", hungry)
    outcome = scored()

    assert outcome[0] == pytest.approx(measures, rel=1e-6)
    torch.testing.assert_close(outcome[1], probabilities)
    assert outcome[2] > parts


# --- files of strangers --------------------------------------------------------------------------


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def refusal(path) -> str:
    with pytest.raises(UnreadableError) as caught:
        read_json(path)
    return str(caught.value)


@given(st.dictionaries(st.text(), plain))
def test_what_json_was_written_is_read(content):
    assert parse_json(json.dumps(content)) == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1 is not JSON"),
        (b'{"a": 1,\n"b"', "line 2 is not JSON"),
        (b'{"a":\n "\xff"}', "line 2 is not UTF-8 (byte 0xFF)"),
        (b'{"a": 1\n\n\0}', "line 3 holds a NUL byte"),
        (b"[1]", "it is no JSON object"),
        (b'{"a": 1, "b": 2, "a": 3}', "the name 'a' is there twice"),
        (b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", f"nested deeper than {MAX_DEPTH} levels"),
        (b"[" * 100_000, f"nested deeper than {MAX_DEPTH} levels"),
        (b'{"a": ' + b"9" * 20 + b"}", "a whole number has more than 64 bits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "integer string conversion"),
    ],
)
def test_what_none_of_our_files_holds_is_refused(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_bytes(content)

    assert message in refusal(path)


def test_a_file_that_is_too_large_is_refused_unread_and_a_pipe_is_not_waited_for(tmp_path):
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(2**31)
    os.mkfifo(tmp_path / "pipe.json")

    with memory_up_to(3 * MAX_FILE_BYTES):
        assert refusal(tmp_path / "a.json") == "it is larger than 16,384 KiB"
    assert "expected a plain file" in refusal(tmp_path / "pipe.json")
    with pytest.raises(OSError, match="too long"):  # which is an error of the system
        read_text(tmp_path / ("x" * 5000))


@fuzz(200)
@given(damaged(b'{"labels": ["a", "b"], "shape": {"width": 16, "bias": true}, "x": [1.5, null]}'))
def test_fuzz_damaged_json_is_read_or_refused(content):
    try:
        document = parse_json(content.decode("utf-8", "replace"))
    except UnreadableError:
        return
    assert isinstance(document, dict)


def test_a_message_is_one_line_that_cannot_steer_a_terminal_and_a_log_keeps_its_lines():
    assert printable("a\n\tb \x1b[31mred\x9b") == "a b \\x1b[31mred\\x9b"
    assert len(printable("x" * 10**6)) < 3000
    assert escaped("a\n  b\tc\x07") == "a\n  b\tc\\x07"


def test_a_file_that_another_machine_replaces_just_now_is_opened_again(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text("{}")
    opened, stale = Path.open, [OSError(errno.ESTALE, "Stale file handle")]

    def open_(path, *given, **named):
        if stale:
            raise stale.pop()
        return opened(path, *given, **named)

    monkeypatch.setattr(Path, "open", open_)

    assert read_json(tmp_path / "a.json") == {}
    stale += [OSError(errno.ESTALE, "Stale file handle")] * 2
    with pytest.raises(OSError, match="Stale"):
        read_json(tmp_path / "a.json")


@given(st.text("ab `*_<>[]()|\\#!&~$;.\n", max_size=12))
def test_markdown_shows_a_text_as_it_is(text):
    markdown_it = pytest.importorskip("markdown_it")
    shown = [f"x {markdown_text(text)} y", markdown_code(text)]
    table = f"| a | b |\n|---|---|\n{markdown_row(shown)}"
    page = markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])

    for whole in ("\n\n".join(shown), table):
        said, code = [t for t in page.parse(whole) if t.type == "inline"][-2:]

        assert {token.type for token in said.children} <= {"text", "text_special"}
        assert [token.type for token in code.children] == ["code_inline"]
        assert "".join(token.content for token in said.children).split() == f"x {text} y".split()
        assert code.children[0].content == (" ".join(text.split()) or " ")


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t=", "\r=", "\uff1d"])
def test_a_spreadsheet_computes_no_text(begin):
    assert spreadsheet_cell(f"{begin}1+1").startswith(("'", "\\"))
    assert spreadsheet_cell(f"1{begin}1")[0] == "1"


@dataclass
class Record:
    name: str
    share: float | None = None
    words: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (Record(None), "name"), (Record(1), "name"), (Record("a", True), "share"),
        (Record("a", "1"), "share"), (Record("a", 1, ["b"]), "words"),
    ],
)  # fmt: skip
def test_a_record_of_other_kinds_is_refused_by_its_field(record, name):
    for right in (Record("a"), Record("a", 1), Record("a", 0.5, ("b",))):
        check_field_types(right)

    with pytest.raises(UnreadableError, match=f"its {name} is no "):
        check_field_types(record)
