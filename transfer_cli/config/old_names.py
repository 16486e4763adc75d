"""What classes of data were called in configs of older runs.

A run is read by the names of today, so that it can be resumed, scored and compared.
"""

from typing import Any

_DATA = "transfer_cli.data"
_TASKS = "transfer_cli.tasks"

_NEW = {
    f"{_DATA}.hub_table.HubTable": f"{_TASKS}.table.HubTable",
    f"{_DATA}.rest.Rest": f"{_DATA}.labelled.Rest",
    f"{_DATA}.tasks.Table": f"{_TASKS}.table.Table",
    f"{_DATA}.tasks.Trec": f"{_TASKS}.trec.Trec",
    f"{_DATA}.tokenizer.BytePairs": f"{_DATA}.tokenizer_recipes.BytePairs",
    f"{_DATA}.tokenizer.FromFile": f"{_DATA}.tokenizer_recipes.FromFile",
    f"{_DATA}.tokenizer.Inherited": f"{_DATA}.tokenizer_recipes.Inherited",
    f"{_DATA}.tokenizer.WordPiece": f"{_DATA}.tokenizer_recipes.WordPiece",
    f"{_TASKS}.choice.data.Choices": f"{_TASKS}.choice.task.Choices",
    f"{_TASKS}.dialog.data.Dialogs": f"{_TASKS}.dialog.task.Dialogs",
    f"{_TASKS}.multilabel.data.LabelsTable": f"{_TASKS}.multilabel.task.LabelsTable",
    f"{_TASKS}.regression.data.NumberTable": f"{_TASKS}.regression.task.NumberTable",
    f"{_TASKS}.span.data.Squad": f"{_TASKS}.span.task.Squad",
    f"{_TASKS}.tagging.data.TaggedFiles": f"{_TASKS}.tagging.files.TaggedFiles",
    f"{_TASKS}.text_to_text.data.TextPairsTable": f"{_TASKS}.text_to_text.task.TextPairsTable",
}

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
    if isinstance(target, str) and target in _NEW:
        renamed["_target_"] = _NEW[target]
    elif isinstance(target, str) and target in _SAMPLES:
        renamed |= {"_target_": f"{_TASKS}.samples.EmbeddedSample", "sample": _SAMPLES[target]}
    return renamed
