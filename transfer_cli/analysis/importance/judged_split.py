"""A split on which a model's answers can be judged, and the measure that judges them."""

from transfer_cli.analysis.analysis import Subject
from transfer_cli.data.labelled import INPUT
from transfer_cli.data.split import Split, some_of
from transfer_cli.engine.evaluation import Scores, evaluate
from transfer_cli.errors import ConfigError
from transfer_cli.metrics import Metric, by_preference
from transfer_cli.objectives.base import declared_metrics
from transfer_cli.objectives.replaced_tokens import ReplacedTokens


def check_task(subject: Subject) -> None:
    """Refuse examples that the model's objective cannot read."""
    objective, material = subject.objective, subject.material
    if objective.task is None:
        return
    what = f"data: {subject.opened.path} was trained for {objective.task}, and"
    if material.task is None or material.task.name != objective.task:
        shown = "text without labels" if material.task is None else material.task.name
        raise ConfigError(f"{what} this is {shown}; name data of its task (data=)")
    if material.task.labels != objective.info.labels:
        raise ConfigError(f"{what} these data have other labels than it knows")


def judged_split(subject: Subject, most: int | None) -> Split:
    """Return the split that was asked for, or `most` of its examples, evenly spread."""
    if subject.objective.task is not None and tuple(subject.material.names) == (INPUT,):
        raise ConfigError(
            "input: texts of a file have no answers to judge a model by; name labelled data (data=)"
        )
    if isinstance(subject.objective, ReplacedTokens):
        raise ConfigError(
            f"run: {subject.opened.path} was trained on tokens that a generator replaces, which is "
            "no part of the model; adapt it to a task (transfer finetune), and ask that run"
        )
    check_task(subject)
    split = subject.split
    return split if most is None else some_of(split, most)


def scores_of(subject: Subject, split: Split) -> Scores:
    """Return what `transfer evaluate` measures on a split."""
    return evaluate(
        subject.model, subject.objective, split, batch=subject.batch, precision=subject.precision
    )


def main_measure(subject: Subject, scores: Scores) -> Metric:
    """Return the measure that runs are judged by, of those that a split has."""
    declared = declared_metrics({"main": subject.objective})
    return next(each for each in by_preference(declared) if each.name in scores.measures)
