"""Hyper-parameters as TensorBoard's own HParams page finds them."""

import logging

import pytest
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
from tensorboard.plugins.scalar import metadata as scalar_metadata

from transfer_cli.runs.tensorboard import SummaryWriter


def page(folder):
    """Return the columns and the lines of the HParams page of a folder of runs."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    runs = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
    shown = base_plugin.TBContext(
        data_provider=data_provider.MultiplexerDataProvider(runs, str(folder))
    )
    context, request = backend_context.Context(shown), RequestContext()
    metadata = context.hparams_metadata(request, "")
    experiment = context.experiment_from_metadata(
        request, "", True, metadata, context.hparams_from_data_provider(request, "", None)
    )
    asked = api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=100, allowed_statuses=[api_pb2.STATUS_SUCCESS],
        aggregation_type=api_pb2.AGGREGATION_AVG,
    )  # fmt: skip
    lines = list_session_groups.Handler(request, context, "", asked).run()
    return experiment, {group.name: group for group in lines.session_groups}


def values(group):
    return {metric.name.tag: metric.value for metric in group.metric_values}


def write(folder, hparams, measures, step=7):
    writer = SummaryWriter(folder)
    writer.add_scalar("train/loss", 1.0, 1)
    writer.add_hparams(hparams, measures, step)
    writer.close()
    return folder


def test_the_page_shows_hyper_parameters_with_measures(tmp_path):
    write(tmp_path / "run", {"optimizer.lr": 0.5, "adaptation": "full"}, {"test/loss": 2.0})

    experiment, lines = page(tmp_path)

    assert {info.name for info in experiment.hparam_infos} == {"optimizer.lr", "adaptation"}
    assert [info.name.tag for info in experiment.metric_infos] == ["weights_kept/test/loss"]
    (group,) = lines.values()
    assert group.hparams["optimizer.lr"].number_value == 0.5
    assert group.hparams["adaptation"].string_value == "full"
    assert values(group) == {"weights_kept/test/loss": 2.0}
    assert group.sessions[0].metric_values[0].training_step == 7
    assert scalar_metadata.PLUGIN_NAME == "scalars"


def test_what_varies_stands_before_the_rest(tmp_path):
    writer = SummaryWriter(tmp_path / "run")
    known = {"adaptation": "full", "loop.batch": 8, "optimizer.lr": 0.5, "seed": 0}
    writer.add_hparams(known, {"test/loss": 2.0}, 7, varying=["seed", "optimizer.lr"])
    writer.close()

    experiment, _ = page(tmp_path)

    names = [info.name for info in experiment.hparam_infos]
    assert names == ["optimizer.lr", "seed", "adaptation", "loop.batch"]


def test_two_runs_are_two_lines(tmp_path):
    for run, rate, error in (("0", 0.5, 0.0), ("1", 0.25, 10.0)):
        write(tmp_path / run / "tensorboard", {"optimizer.lr": rate}, {"test/error_rate": error})

    _, lines = page(tmp_path)

    shown = [(g.hparams["optimizer.lr"].number_value, values(g)) for g in lines.values()]
    assert [*zip(lines, shown, strict=True)] == [
        ("0/tensorboard", (0.5, {"weights_kept/test/error_rate": 0})),
        ("1/tensorboard", (0.25, {"weights_kept/test/error_rate": 10})),
    ]


@pytest.mark.parametrize("hparams", [{}, {"name": "ü" * 100}])
def test_any_text_and_no_hyper_parameters_can_be_written_in_one_folder(tmp_path, hparams):
    write(tmp_path / "run", hparams, {"test/loss": float("nan")})

    _, lines = page(tmp_path)

    assert [len(list(path.iterdir())) for path in tmp_path.iterdir()] == [1]
    (group,) = lines.values()
    assert {key: value.string_value for key, value in group.hparams.items()} == hparams
