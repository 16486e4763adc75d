"""What classes were called in configs and models of older runs.

A run is read by the names of today, so that it can be resumed, scored and compared.
"""

from typing import Any

_DATA = "transfer_cli.data"
_OBJECTIVES = "transfer_cli.objectives"
_TASKS = "transfer_cli.tasks"

_NEW = {
    f"{_DATA}.hub_table": f"{_TASKS}.table",
    f"{_DATA}.rest": f"{_DATA}.labelled",
    f"{_DATA}.tasks.Table": f"{_TASKS}.table.Table",
    f"{_DATA}.tasks.Trec": f"{_TASKS}.trec.Trec",
    f"{_DATA}.text.SampleText": f"{_DATA}.known_texts.SampleText",
    f"{_DATA}.text.TaskText": f"{_DATA}.known_texts.TaskText",
    f"{_DATA}.text.WikiText": f"{_DATA}.known_texts.WikiText",
    f"{_DATA}.tokenizer.BytePairs": f"{_DATA}.tokenizer_recipes.BytePairs",
    f"{_DATA}.tokenizer.FromFile": f"{_DATA}.tokenizer_recipes.FromFile",
    f"{_DATA}.tokenizer.Inherited": f"{_DATA}.tokenizer_recipes.Inherited",
    f"{_DATA}.tokenizer.WordPiece": f"{_DATA}.tokenizer_recipes.WordPiece",
    f"{_OBJECTIVES}.consistency": f"{_OBJECTIVES}.of_main_head",
    f"{_OBJECTIVES}.cross_view": f"{_OBJECTIVES}.beside_main_head",
    f"{_OBJECTIVES}.distil_lm": f"{_OBJECTIVES}.with_teachers",
    f"{_OBJECTIVES}.distillation": f"{_OBJECTIVES}.of_main_head",
    f"{_OBJECTIVES}.slice_heads": f"{_OBJECTIVES}.beside_main_head",
    f"{_OBJECTIVES}.source_distillation": f"{_OBJECTIVES}.with_teachers",
    f"{_TASKS}.choice.data": f"{_TASKS}.choice.task",
    f"{_TASKS}.choice.objective": f"{_TASKS}.choice.task",
    f"{_TASKS}.cloze.objective": f"{_TASKS}.cloze.task",
    f"{_TASKS}.dialog.data": f"{_TASKS}.dialog.task",
    f"{_TASKS}.multilabel.data": f"{_TASKS}.multilabel",
    f"{_TASKS}.multilabel.objective": f"{_TASKS}.multilabel",
    f"{_TASKS}.multilabel.task": f"{_TASKS}.multilabel",
    f"{_TASKS}.regression.data": f"{_TASKS}.regression",
    f"{_TASKS}.regression.objective": f"{_TASKS}.regression",
    f"{_TASKS}.regression.task": f"{_TASKS}.regression",
    f"{_TASKS}.span.data": f"{_TASKS}.span.task",
    f"{_TASKS}.tagging.data": f"{_TASKS}.tagging.files",
    f"{_TASKS}.text_to_text.data": f"{_TASKS}.text_to_text.task",
    f"{_TASKS}.text_to_text.objective": f"{_TASKS}.text_to_text.task",
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
    return {**renamed, "_target_": _NEW.get(target, f"{_NEW.get(module, module)}{dot}{name}")}
