"""What a ladder of smaller runs foretells of a run, before its first step."""

from dataclasses import asdict, replace
from pathlib import Path

from transfer_cli.assembly.blueprint import Blueprint
from transfer_cli.assembly.flops_estimate import flops_of_run, full_text_costs
from transfer_cli.config.decided import with_values
from transfer_cli.config.flat import flat_items
from transfer_cli.config.stored import plain_values
from transfer_cli.errors import ConfigError, raised_as
from transfer_cli.reports import formats
from transfer_cli.reports.collect import collect
from transfer_cli.reports.contents import Run
from transfer_cli.reports.grouping import first_difference
from transfer_cli.reports.ladder import ladder_runs, predict_run
from transfer_cli.reports.scaling_law import NoLawError


def runs_of_ladder(sweep: str) -> list[Run]:
    """Return the runs of a ladder; refuse one that foretells nothing."""
    with raised_as(ConfigError, "ladder.of: ", ConfigError):
        runs = ladder_runs(collect([Path(sweep).expanduser()]).runs)
    with raised_as(ConfigError, f"ladder.of: {sweep} foretells nothing: ", NoLawError):
        predict_run(runs, 1, 1, 1)
    return runs


def with_prediction(plan: Blueprint) -> Blueprint:
    """Return a blueprint whose config holds what `ladder.of` foretells of its validation loss."""
    config, model = plan.config, plan.model
    sweep = (config.get("ladder") or {}).get("of")
    if sweep is None:
        return plan
    runs = runs_of_ladder(sweep)
    settings = dict(flat_items(plain_values(config)))
    if key := first_difference(runs[0].settings, settings):
        there, here = (formats.plain(of.get(key)) for of in (runs[0].settings, settings))
        raise ConfigError(
            f"ladder.of: {sweep} has {key}={there} where this run has {here}, and a loss per token "
            f"differs with it; type {key}={there} to compare"
        )
    length = plan.most_tokens
    operations = flops_of_run(plan, *full_text_costs(plan, length)[:2])
    tokens = plan.course.sizes.total_steps * plan.course.loop.batch * length
    parameters = sum(parameter.numel() for parameter in model.parameters())
    with raised_as(ConfigError, f"ladder.of: {sweep} foretells nothing of this run: ", NoLawError):
        prediction = predict_run(runs, operations, parameters, tokens)
    return replace(plan, config=with_values(config, {"ladder.prediction": asdict(prediction)}))
