"""What processes on other machines are told of the run directory."""

import pytest

from transfer_cli.errors import RunError
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.training import train


@pytest.fixture
def second_process(monkeypatch):
    """Be the second process, on another machine; give what the first one says."""

    def say(text):
        monkeypatch.setattr(train.distributed, "is_main", lambda: False)
        monkeypatch.setattr(train.distributed, "rank", lambda: 1)
        monkeypatch.setattr(train.distributed, "broadcast_text", lambda own: text)
        monkeypatch.setattr(train, "SECONDS_TO_APPEAR", 0.0)

    return say


def test_the_main_process_keeps_its_own_run(tmp_path):
    run = RunDirectory(tmp_path)

    assert train._of_main(run) is run
    assert train._of_main(None) is None


def test_another_process_takes_the_run_of_the_main_one(tmp_path, second_process):
    second_process(str(tmp_path))

    assert train._of_main(None).path == tmp_path


def test_where_there_is_no_run_all_know_it(second_process):
    second_process("")

    assert train._of_main(None) is None


def test_a_directory_that_is_not_shared_is_refused_at_once(tmp_path, second_process):
    second_process(str(tmp_path / "elsewhere"))

    with pytest.raises(RunError, match=r"run\.dir: process 1 on .* does not see .*elsewhere"):
        train._of_main(None)
