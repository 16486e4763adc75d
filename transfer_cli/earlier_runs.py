"""Runs of commits 2841927 and e2ebd90: where they differ from today's, and how they are read.

They resume, report, predict and export like others. Version 0.1.0 wrote all of them, so a run is
told by what it has: one of 2841927 has no metrics in `results.json` and no `ran_on.json` in its
checkpoints.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from transfer_cli.metrics import Metric

# --- names of classes, in configs and models -----------------------------------------------------

_DATA = "transfer_cli.data"
_OBJECTIVES = "transfer_cli.objectives"
_TASKS = "transfer_cli.tasks"

_NEW_NAMES = {
    f"{_DATA}.hub_table": f"{_TASKS}.table",
    f"{_DATA}.rest": f"{_DATA}.labelled",
    f"{_DATA}.tasks.Table": f"{_TASKS}.table.Table",
    f"{_DATA}.tasks.Trec": f"{_TASKS}.trec.Trec",
    **{
        f"{_DATA}.text.{name}": f"{_DATA}.known_texts.{name}"
        for name in ("SampleText", "TaskText", "WikiText")
    },
    f"{_DATA}.tokenizer": f"{_DATA}.tokenizer_recipes",
    f"{_OBJECTIVES}.cross_view": f"{_OBJECTIVES}.beside_main_head",
    f"{_OBJECTIVES}.distil_lm": f"{_OBJECTIVES}.with_teachers",
    f"{_OBJECTIVES}.distillation": f"{_OBJECTIVES}.of_main_head",
    f"{_OBJECTIVES}.slice_heads": f"{_OBJECTIVES}.beside_main_head",
    f"{_OBJECTIVES}.source_distillation": f"{_OBJECTIVES}.with_teachers",
    **{
        f"{_TASKS}.{task}.{part}": f"{_TASKS}.{task}.task"
        for task in ("choice", "cloze", "dialog", "span", "text_to_text")
        for part in ("data", "objective")
    },
    **{
        f"{_TASKS}.{task}.{part}": f"{_TASKS}.{task}"
        for task in ("multilabel", "regression")
        for part in ("data", "objective", "task")
    },
    f"{_TASKS}.tagging.data": f"{_TASKS}.tagging.files",
}
"""Modules that became a part of another, and classes that alone were moved."""

_SAMPLES = {
    f"{_DATA}.tasks.SamplePairs": "pairs",
    f"{_DATA}.tasks.SampleQuestions": "questions",
    f"{_TASKS}.choice.data.SampleChoices": "choices",
    f"{_TASKS}.dialog.data.SampleDialog": "dialog",
    f"{_TASKS}.multilabel.data.SampleLabels": "labels",
    f"{_TASKS}.regression.data.SampleNumbers": "numbers",
    f"{_TASKS}.span.data.SampleSpans": "spans",
    f"{_TASKS}.tagging.data.SampleTags": "tags",
    f"{_TASKS}.text_to_text.data.SampleTextPairs": "text_pairs",
}
"""Each was a class of its own; which one it is, the option `sample` says."""


def with_new_names(node: Any) -> Any:
    """Return a config, or a part of one, in which classes have their names of today."""
    if isinstance(node, list):
        return [with_new_names(value) for value in node]
    if not isinstance(node, dict):
        return node
    renamed = {name: with_new_names(value) for name, value in node.items()}
    target = node.get("_target_")
    if not isinstance(target, str):
        return renamed
    if target in _SAMPLES:
        return {
            **renamed, "_target_": f"{_TASKS}.samples.EmbeddedSample", "sample": _SAMPLES[target],
        }  # fmt: skip
    module, dot, name = target.rpartition(".")
    today = _NEW_NAMES.get(target, f"{_NEW_NAMES.get(module, module)}{dot}{name}")
    return {**renamed, "_target_": today}


# --- configs -----------------------------------------------------------------------------------

_SHAPE = "transfer_cli.model.backbone.BackboneShape"

_LATER_OPTIONS = {
    "norm": "layer", "feedforward_kind": "mlp", "attention": "full",
    "rotary": {"base": 10_000.0, "share": 1.0, "scaling": None, "local_base": None},
    "biases": "all", "key_value_heads": None, "head_width": None, "query_key_norm": False,
    "embedding_scale": 1.0, "window": 128, "global_every": 0, "global_from": 0,
    "output_activation": "gelu", "share": "none",
    "sparse": "split", "summary": None,
}  # fmt: skip
"""Options of a model that 2841927 did not have, with what it did, so that runs can be compared."""

LABELLED_SOURCES = {
    f"{_TASKS}.{name}"
    for name in (
        "choice.task.Choices", "dialog.task.Dialogs", "glue.Glue", "multilabel.LabelsTable",
        "regression.NumberTable", "samples.EmbeddedSample", "span.task.Squad", "table.HubTable",
        "table.Table", "tagging.files.TaggedFiles", "text_to_text.task.TextPairsTable", "trec.Trec",
    )
}  # fmt: skip
"""Labelled data, whose equal texts were drawn like others then; what a run stores says how."""


def _keep_duplicates(node: Any) -> None:
    """Say of labelled data that do not say so that equal texts are drawn like others."""
    if isinstance(node, dict):
        if str(node.get("_target_")) in LABELLED_SOURCES:
            node.setdefault("duplicates", "keep")
        for part in node.values():
            _keep_duplicates(part)


def upgrade_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a stored config, with the names of today, and its options."""
    _keep_duplicates(config)
    model = config.get("model")
    if isinstance(model, dict) and model.get("_target_") == _SHAPE:
        for name, value in _LATER_OPTIONS.items():
            model.setdefault(name, value)
    return config


def typed_with_old_defaults(
    typed: Mapping[str, Any], stored: Mapping[str, Any], given: Set[str]
) -> dict[str, Any]:
    """Return what the command of a run says today, by the options and defaults of its beginning.

    Args:
        typed: All values of the command by key, as it was typed again.
        stored: Those of the run.
        given: The keys that were typed; what else `typed` has are defaults.
    """
    values = dict(typed)
    for key in typed.keys() - stored.keys() - given:
        kind = f"{key.rpartition('.')[0]}._target_"
        if kind in stored and typed.get(kind) == stored[kind]:  # an option that its part got later
            values[key] = None
    for key in stored.keys() - given:
        if key.endswith(".duplicates") and stored[key] == "keep":
            values[key] = "keep"
    inherits = str(typed.get("tokenizer._target_")).endswith(".Inherited")
    if inherits and stored.get("tokenizer", "") is None:
        # 2841927 said nothing of a tokenizer that is inherited.
        values = {key: value for key, value in values.items() if not key.startswith("tokenizer.")}
    if "loop.monitor" not in given and stored.get("loop.monitor") == "loss":
        values["loop.monitor"] = "loss"  # the default of both
    return values


# --- checkpoints -------------------------------------------------------------------------------

DROPOUT_DRAWN_OTHERWISE = (
    "the version that wrote the checkpoint drew dropout, where there is any, otherwise, and did "
    "not note what it ran on"
)
"""What is said of a checkpoint of 2841927."""


def upgrade_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a checkpoint, in which the best value of a stage is one of several."""
    stages = state["step"]["stages"]
    if isinstance(stages["best"], float):
        stages["best"] = (stages["best"],)
    return state


# --- results -----------------------------------------------------------------------------------

_PERPLEXITY = Metric(
    "perplexity", higher_is_better=False, unit="perplexity", headline=True, per_example=True
)

UNDECLARED_METRICS = (
    Metric("error_rate", higher_is_better=False, unit="percent", headline=True, per_example=True),
    Metric("macro_f1", higher_is_better=True, unit="fraction"),
    Metric("accuracy", higher_is_better=True, unit="fraction", per_example=True),
    replace(_PERPLEXITY, name="word_perplexity"),
    Metric("bits_per_byte", higher_is_better=False, unit="bits", per_example=True),
    replace(_PERPLEXITY, name="token_perplexity"),
    replace(_PERPLEXITY, name="masked_token_perplexity"),
    Metric("loss", higher_is_better=False, unit="nats", headline=True, per_example=True),
)
"""What 2841927 measured; of a metric that is not in here, less is better."""


def undeclared_metrics(measures: Mapping[str, Mapping[str, Any]]) -> tuple[Metric, ...]:
    """Return the metrics of a run of 2841927 that measured these numbers, by split and name."""
    return (*UNDECLARED_METRICS, *_undeclared_parts(measures))


def _undeclared_parts(measures: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of further losses, and of objectives that are not ours."""
    known = {metric.name: metric for metric in UNDECLARED_METRICS}
    for name in dict.fromkeys(name for measured in measures.values() for name in measured):
        parts = name.split("/")
        at = next((at for at, part in enumerate(parts) if part in known), None)
        if at is None:
            yield Metric(name or "unnamed", higher_is_better=False)
        elif at > 0:
            prefixed = "/".join(parts[: at + 1])
            yield replace(known[parts[at]], name=prefixed, headline=False, per_example=False)
