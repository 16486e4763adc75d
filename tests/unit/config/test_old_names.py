import pytest

from transfer_cli.config.build import TARGET, class_of
from transfer_cli.config.old_names import with_new_names
from transfer_cli.config.plain_yaml import read_plain
from transfer_cli.tasks.samples import EmbeddedSample

OLD = """
data.hub_table.HubTable data.rest.Rest data.tasks.SamplePairs data.tasks.SampleQuestions
data.tasks.Table data.tasks.Trec data.tokenizer.BytePairs data.tokenizer.FromFile
data.tokenizer.Inherited data.tokenizer.WordPiece tasks.choice.data.Choices
tasks.choice.data.SampleChoices
tasks.dialog.data.Dialogs tasks.dialog.data.SampleDialog tasks.glue.Glue
tasks.multilabel.data.LabelsTable tasks.multilabel.data.SampleLabels
tasks.regression.data.NumberTable tasks.regression.data.SampleNumbers tasks.span.data.SampleSpans
tasks.span.data.Squad tasks.tagging.data.SampleTags tasks.tagging.data.TaggedFiles
tasks.text_to_text.data.SampleTextPairs tasks.text_to_text.data.TextPairsTable
objectives.consistency.Consistency objectives.cross_view.CrossView objectives.distil_lm.DistilLM
objectives.distillation.Distillation objectives.slice_heads.SliceHeads
objectives.source_distillation.SourceDistillation tasks.choice.objective.MultipleChoice
tasks.multilabel.objective.Multilabel tasks.multilabel.task.MultilabelTask
tasks.regression.objective.Regression
tasks.regression.task.NumberTable tasks.regression.task.RegressionTask
tasks.cloze.objective.Cloze tasks.text_to_text.objective.PrefixLM
"""


@pytest.mark.parametrize("name", OLD.split())
def test_a_class_of_an_older_run_has_one_of_the_same_name_or_is_a_sample(name):
    node = with_new_names({TARGET: f"transfer_cli.{name}"})

    today = class_of(node, "data")

    assert (
        EmbeddedSample(node["sample"])
        if today is EmbeddedSample
        else today.__name__ == name.split(".")[-1]
    )


def test_names_inside_of_streams_and_tasks_are_new_as_well(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "streams:\n  more:\n    data:\n      task:\n"
        "        _target_: transfer_cli.data.tasks.SamplePairs\n        world: 3\n"
    )

    assert read_plain(path)["streams"]["more"]["data"]["task"] == {
        TARGET: "transfer_cli.tasks.samples.EmbeddedSample", "sample": "pairs", "world": 3,
    }  # fmt: skip
