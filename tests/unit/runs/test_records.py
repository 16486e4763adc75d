from transfer_cli.runs.records import MetricsFile, cut, read_metrics


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


def test_a_file_is_cut_to_the_size_that_it_had_and_never_made_longer(tmp_path):
    path = written(tmp_path / "metrics.jsonl")
    before = path.read_bytes()
    MetricsFile(path).write("train", 11, {"loss": 0.0})

    cut(path, len(before))
    assert path.read_bytes() == before

    cut(path, 10**6)
    cut(tmp_path / "none", 3)
    assert path.read_bytes() == before
    assert not (tmp_path / "none").exists()


def test_numbers_that_are_not_finite_survive(tmp_path):
    path = tmp_path / "metrics.jsonl"

    MetricsFile(path).write("validation", 1, {"perplexity": float("inf")})

    assert read_metrics(path)[0]["perplexity"] == float("inf")
