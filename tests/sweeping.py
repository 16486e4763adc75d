"""Sweeps of a command that does next to nothing, in the process of the test."""

from pathlib import Path

from omegaconf import DictConfig

from transfer_cli.cli import _declared_metrics
from transfer_cli.config.compose import compose
from transfer_cli.config.flags import parse_request
from transfer_cli.sweeps.jobs import Jobs
from transfer_cli.sweeps.multirun import chosen_folder, run_sweep


class Recorder:
    """A command that remembers what it was run with."""

    def __init__(self, fails=lambda config: None):
        self.fails = fails
        self.configs = []

    def __call__(self, config):
        self.configs.append(config)
        error = self.fails(config)
        if error is not None:
            raise error
        if "run" in config and isinstance(config.run, DictConfig):
            folder = Path(config.run.dir)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "status.json").write_text('{"status": "finished"}')


def run(
    words, command="pretrain", fails=lambda config: None, metrics=_declared_metrics,
    try_out=lambda config, command: None,
):  # fmt: skip
    """Run jobs in this process; return their configs, what became of them, and what was said."""
    recorder, reported = Recorder(fails), []
    request = parse_request([*words, "sweep.isolate=false"] if command != "evaluate" else words)

    def report(job, error):
        reported.append(job)
        return f"job {job.number} is {error}"

    jobs = Jobs(
        command, recorder, request, report, metrics, try_out, makes_runs=command != "evaluate"
    )
    if not request.multirun:
        recorder(compose(command, request).config)
        return recorder.configs, jobs, reported
    with chosen_folder(jobs) as folder:
        run_sweep(jobs, folder)
        if not jobs.done:
            jobs.read_outcomes(folder)
    return recorder.configs, jobs, reported
