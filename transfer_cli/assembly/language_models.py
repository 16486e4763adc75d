"""Finished runs that are language models: they go on with texts, fill gaps and score sentences."""

from transfer_cli.assembly.finished_run import OpenedModel, TrainedModel, open_trained
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.generation.sentences import SentenceScorer
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.language_model import LanguageModel
from transfer_cli.objectives.masked_lm import MaskedLM


def open_language_model(
    path: str, precision: Precision, base: str | None, kind: type[LanguageModel]
) -> TrainedModel:
    """Return the run at `path`, which has to be a language model of this kind."""
    trained = open_trained(path, precision, base)
    if isinstance(trained.objective, kind):
        return trained
    if isinstance(trained.objective, CausalLM):
        raise CheckpointError(
            f"run: {path} is a causal language model, which sees nothing of what follows a gap; "
            f"use transfer generate run={path} 'A text to go on with'"
        )
    if isinstance(trained.objective, MaskedLM):
        raise CheckpointError(
            f"run: {path} is a masked language model, which fills gaps and does not go on with a "
            f"text; use transfer fill run={path} 'A text with a [MASK] .'"
        )
    command, option = ("fill", "mlm") if kind is MaskedLM else ("generate", "clm")
    raise CheckpointError(
        f"run: {path} is no language model ({type(trained.objective).__name__}); {command} needs a "
        f"run of objective={option}, such as the one that this was adapted from"
    )


def sentence_scorer(
    opened: TrainedModel | OpenedModel, *, batch: int, scores_first: bool, within_word: bool
) -> SentenceScorer:
    """Return what scores sentences by a language model; for the options see `SentenceScorer`."""
    if not isinstance(opened.objective, LanguageModel):
        what = "has no head" if opened.objective is None else type(opened.objective).__name__
        raise ConfigError(
            f"run: this is no language model ({what}), which alone says how likely a sentence is; "
            "give one, such as the run that this was adapted from"
        )
    start = opened.start
    is_causal = isinstance(opened.objective, CausalLM)
    return SentenceScorer(
        opened.model, start.tokenizer, start.prompt_layout if is_causal else start.around,
        batch=batch, scores_first=scores_first, within_word=within_word,
    )  # fmt: skip
