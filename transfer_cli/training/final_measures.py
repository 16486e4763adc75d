"""What a run's weights score: during training on validation, in the end on all splits."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from transfer_cli.assembly.datasets import encoded_of
from transfer_cli.assembly.run import TrainingRun
from transfer_cli.data.split import Split, some_of
from transfer_cli.engine.evaluation import EachExample, Scores, evaluate, samples
from transfer_cli.engine.loop import Progress
from transfer_cli.errors import DivergedError, NotFiniteError
from transfer_cli.objectives.base import Loss
from transfer_cli.runs.items import Item
from transfer_cli.tasks.base import by_example
from transfer_cli.training.examples import items_of, noting, of_slices

MOST_JUDGED = 1000
"""Training examples by which a run is judged to have failed."""

SAMPLES = 8
"""Predictions that TensorBoard shows at each validation."""


@dataclass(frozen=True)
class SplitScores:
    """The scores of a split, and what became of its examples."""

    scores: Scores
    each: EachExample | None


@dataclass(frozen=True)
class FinalMeasures:
    """What the best weights of a run do on validation and test.

    Args:
        scores: By split.
        items: What became of their examples.
        failed: Why the run came to nothing; None when it did not.
    """

    scores: dict[str, Scores]
    items: list[Item]
    failed: str | None


class SplitScorer:
    """Scores splits of a run by the weights that its model has now.

    Args:
        run: The run.
        progress: How far it is, for errors.
    """

    def __init__(self, run: TrainingRun, progress: Progress) -> None:
        self._run = run
        self._progress = progress

    def score(self, loss: Loss, split: Split, each: EachExample | None = None) -> Scores:
        """Return what a loss measures; `each` notes what becomes of the examples."""
        run, precision = self._run, self._run.blueprint.precision
        with self.diverging():
            return evaluate(
                run.model, loss.objective, split,
                batch=run.passing, precision=precision, each=each,
            )  # fmt: skip

    @contextlib.contextmanager
    def diverging(self) -> Iterator[None]:
        """Blame the training where a loss is not finite."""
        try:
            yield
        except NotFiniteError as error:
            raise DivergedError(
                f"step {self._progress.step}: {error}; try a lower optimizer.lr or a longer "
                "schedule.warmup"
            ) from error

    def measures(self, name: str) -> dict[str, float]:
        """Return the measures of a split: those of the main loss, of others by their names."""
        scores = self.score(self._run.blueprint.network.losses[0], self._run.data.splits[name])
        return scores.measures | self._further(name)

    def noted(self, name: str) -> SplitScores:
        """Return the scores of a split with the same measures, and what became of its examples."""
        split = self._run.data.splits[name]
        each = noting(split)
        scores = self.score(self._run.blueprint.network.losses[0], split, each)
        return SplitScores(replace(scores, measures=scores.measures | self._further(name)), each)

    def _further(self, name: str) -> dict[str, float]:
        measures: dict[str, float] = {}
        for loss in self._run.blueprint.network.losses[1:]:
            split = self._run.prepared[loss.stream].splits.get(name)
            if split is not None:
                of_loss = self.score(loss, split).measures
                measures |= {f"{loss.name}/{metric}": value for metric, value in of_loss.items()}
        return measures

    def samples(self) -> str:
        """Return a few predictions on the validation split as a table."""
        plan = self._run.blueprint
        shown = samples(
            self._run.model, plan.network.losses[0].objective, self._run.data.splits["validation"],
            count=SAMPLES, precision=plan.precision,
        )  # fmt: skip

        def cell(content: list[int] | str) -> str:
            if not isinstance(content, str):
                content = " ".join(plan.data.tokenizer.pieces(content))
            return content.replace("|", "\\|")

        rows = [f"| {cell(s.tokens)} | {cell(s.target)} | {cell(s.prediction)} |" for s in shown]
        return "\n".join(["| input | wanted | predicted |", "|---|---|---|", *rows])


def with_fitted_answers(
    run: TrainingRun, progress: Progress, validation: SplitScores | None
) -> TrainingRun:
    """Return a run that answers by what its task chooses on validation; itself if it chooses none.

    `validation` is what the weights did there, where that is known.
    """
    loss, task = run.blueprint.network.losses[0], run.data.task
    if task is None or not loss.objective.fits_answers:
        return run
    split = run.data.splits["validation"]
    each = validation.each if validation is not None else None
    if each is None:
        each = EachExample()
        SplitScorer(run, progress).score(loss, split, each)
    encoded = encoded_of(split)
    rows = {row.index: row.predicted for row in each.gathered()}
    fitted = task.fit(encoded, by_example(encoded, rows))
    return run.of_task(replace(task, fitted=fitted))


def final_measures(
    run: TrainingRun, progress: Progress, validation: SplitScores | None
) -> FinalMeasures:
    """Score validation and test; `validation` is what is known of the first."""
    scorer, data = SplitScorer(run, progress), run.data
    scores, items = dict[str, Scores](), list[Item]()
    for name in ("validation", "test"):
        if name not in data.splits:
            continue
        scored = (validation if name == "validation" else None) or scorer.noted(name)
        scores[name] = scored.scores
        items_of_split = items_of(data.splits[name], data, scored.each)
        if data.task is not None and items_of_split:
            for loss in run.blueprint.network.losses:
                slices, key = getattr(loss.objective, "parts", {}), f"losses.{loss.name}"
                measures = of_slices(slices, data.splits[name], data.task, items_of_split, key)
                scores[name].measures.update(measures)
        items += items_of_split
    return FinalMeasures(scores, items, _failure(run, scorer, scores.get("validation")))


def _failure(run: TrainingRun, scorer: SplitScorer, validation: Scores | None) -> str | None:
    """Return why the run came to nothing; what it can do on validation it has learnt."""
    task = run.data.task
    if task is None or not task.can_fail:
        return None
    if validation and not task.failure(validation.measures, validation.tables):
        return None
    # Asked only then: most runs have learnt something.
    some = some_of(run.data.splits["train"], MOST_JUDGED)
    scores = scorer.score(run.blueprint.network.losses[0], some)
    return task.failure(scores.measures, scores.tables)
