import pytest

from transfer_cli.runs.records import MetricsFile, read_metrics


def written(path, steps=(1, 5, 10)):
    file = MetricsFile(path)
    for step in steps:
        file.write("train", step, {"loss": 1 / step})
    return path


def test_records_are_read_as_they_were_written(tmp_path):
    path = written(tmp_path / "metrics.jsonl")

    assert read_metrics(path) == [
        {"kind": "train", "step": step, "loss": 1 / step} for step in (1, 5, 10)
    ]


@pytest.mark.parametrize(("after", "left"), [(0, []), (4, [1]), (5, [1, 5]), (99, [1, 5, 10])])
def test_a_resumed_run_drops_the_records_of_later_steps(tmp_path, after, left):
    path = written(tmp_path / "metrics.jsonl")

    MetricsFile(path, after).write("train", after + 1, {"loss": 0.0})

    assert [record["step"] for record in read_metrics(path)] == [*left, after + 1]


@pytest.mark.parametrize("cut", ["{", '{"kind": "train", "step": 1', '{"kind": "train"}', "\0\0"])
def test_a_line_that_a_crash_cut_off_is_dropped(tmp_path, cut):
    path = written(tmp_path / "metrics.jsonl")
    with path.open("a") as file:
        file.write(cut)

    MetricsFile(path, after=10).write("train", 11, {"loss": 0.0})

    assert [record["step"] for record in read_metrics(path)] == [1, 5, 10, 11]


def test_numbers_that_are_not_finite_survive(tmp_path):
    path = tmp_path / "metrics.jsonl"

    MetricsFile(path).write("validation", 1, {"perplexity": float("inf")})

    assert read_metrics(path)[0]["perplexity"] == float("inf")
