"""`-m`: one run for each value; a failed one does not stop the others."""

import pytest

from transfer_cli.cli import main

pytestmark = pytest.mark.functional


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_sweep_with_failed_jobs_names_each_reason_and_ends_with_5(capsys):
    code = main(["evaluate", "-m", "run=one,two", "split=test"])

    out, err = capsys.readouterr()
    summary = out.splitlines()
    assert code == 5
    assert summary[0].startswith("sweep runs/sweeps/evaluate/")
    assert summary[1].startswith("  0  run=one  failed: ")
    assert summary[2].startswith("  1  run=two  failed: ")
    assert "job 0 failed: " in err
    assert "Traceback" not in err
    assert err.endswith("transfer evaluate: 2 of 2 jobs failed\n")


def test_a_job_that_fails_for_our_own_fault_shows_its_traceback(capfd, tmp_path):
    (tmp_path / "lab_of_mine.py").write_text(
        "from transfer_cli.data.text import TextData\n"
        "class Broken(TextData):\n"
        "    length = None\n"
        "    def splits(self, *given, **named):\n"
        "        raise ZeroDivisionError('a slip')\n"
    )
    (tmp_path / "own" / "data").mkdir(parents=True)
    (tmp_path / "own" / "data" / "broken.yaml").write_text(
        "# Broken\n_target_: lab_of_mine.Broken\n"
    )

    words = ["--plugin", "lab_of_mine", "--config-dir", "own", "data=broken", "device=cpu"]
    code = main(["pretrain", "-m", *words, "seed=1,2"])

    out, err = capfd.readouterr()
    assert code == 5
    assert "failed: ZeroDivisionError: a slip" in out
    assert "Traceback" in err


def test_an_own_class_needs_the_flag(capsys, tmp_path):
    (tmp_path / "own" / "data").mkdir(parents=True)
    (tmp_path / "own" / "data" / "mine.yaml").write_text("# Mine\n_target_: a_lab.Text\n")

    code = main(["pretrain", "--config-dir", "own", "data=mine", "device=cpu"])

    assert code == 2
    assert capsys.readouterr().err == (
        "transfer pretrain: data: a_lab.Text is not trusted. "
        "Name your package with --plugin to trust it (--plugin a_lab)\n"
    )
