"""What a ladder of smaller runs foretells of a run, before its first step."""

from dataclasses import asdict, replace
from pathlib import Path

from transfer_cli.assembly.blueprint import Blueprint
from transfer_cli.assembly.flops_estimate import flops_of_run, of_full_texts
from transfer_cli.assembly.model import block_length
from transfer_cli.config.decided import with_values
from transfer_cli.config.flat import flat
from transfer_cli.config.stored import plain_values
from transfer_cli.errors import ConfigError, raised_as
from transfer_cli.reports.collect import collect
from transfer_cli.reports.contents import Run
from transfer_cli.reports.ladder import foretold, of_ladder, unlike
from transfer_cli.reports.scaling_law import NoLawError


def runs_of_ladder(sweep: str) -> list[Run]:
    """Return the runs of a ladder; refuse one that foretells nothing."""
    with raised_as(ConfigError, "ladder.of: ", ConfigError):
        runs = of_ladder(collect([Path(sweep).expanduser()]).runs)
    with raised_as(ConfigError, f"ladder.of: {sweep} foretells nothing: ", NoLawError):
        foretold(runs, 1, 1, 1)
    return runs


def with_prediction(planned: Blueprint) -> Blueprint:
    """Return a blueprint whose config holds what `ladder.of` foretells of its validation loss."""
    config, model = planned.config, planned.model
    sweep = (config.get("ladder") or {}).get("of")
    if sweep is None:
        return planned
    runs = runs_of_ladder(sweep)
    if key := unlike(runs[0].settings, dict(flat(plain_values(config)))):
        raise ConfigError(f"ladder.of: {sweep} differs in {key}, and a loss per token with it")
    length = block_length(config.data.get("length"), model.backbone.shape.positions)
    operations = flops_of_run(planned, *of_full_texts(planned, length)[:2])
    tokens = planned.course.sizes.total_steps * planned.course.loop.batch * length
    parameters = sum(parameter.numel() for parameter in model.parameters())
    with raised_as(ConfigError, f"ladder.of: {sweep} foretells nothing of this run: ", NoLawError):
        prediction = foretold(runs, operations, parameters, tokens)
    return replace(planned, config=with_values(config, {"ladder.prediction": asdict(prediction)}))
