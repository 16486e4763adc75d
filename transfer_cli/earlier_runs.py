"""Runs of commits 2841927 and e2ebd90: where they differ from today's, and how they are read.

They resume, report, predict and export like others. Version 0.1.0 wrote all of them, so a run is
told by what it has: one of 2841927 has no metrics in `results.json` and no `ran_on.json` in its
checkpoints. What classes were called stands in `config.old_names`.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from transfer_cli.metrics import Metric

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


def config_of_today(config: dict[str, Any]) -> dict[str, Any]:
    """Return a stored config with the options of today."""
    model = config.get("model")
    if isinstance(model, dict) and model.get("_target_") == _SHAPE:
        for name, value in _LATER_OPTIONS.items():
            model.setdefault(name, value)
    return config


def typed_as_then(
    typed: Mapping[str, Any], stored: Mapping[str, Any], given: Set[str]
) -> dict[str, Any]:
    """Return what the command of a run says today, by the options and defaults of its beginning.

    Args:
        typed: All values of the command by key, as it was typed again.
        stored: Those of the run.
        given: The keys that were typed; what else `typed` has are defaults.
    """
    then = dict(typed)
    for key in typed.keys() - stored.keys() - given:
        kind = f"{key.rpartition('.')[0]}._target_"
        if typed.get(kind) == stored.get(kind) is not None:  # an option that its part got later
            then[key] = None
    inherits = str(typed.get("tokenizer._target_")).endswith(".Inherited")
    if inherits and stored.get("tokenizer", "") is None:
        # 2841927 said nothing of a tokenizer that is inherited.
        then = {key: value for key, value in then.items() if not key.startswith("tokenizer.")}
    if "loop.monitor" not in given and stored.get("loop.monitor") == "loss":
        then["loop.monitor"] = "loss"  # the default of both
    return then


# --- checkpoints -------------------------------------------------------------------------------

DROPOUT_DRAWN_OTHERWISE = (
    "the version that wrote the checkpoint drew dropout, where there is any, otherwise, and did "
    "not note what it ran on"
)
"""What is said of a checkpoint of 2841927."""


def state_of_today(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a checkpoint, in which the best value of a stage is one of several."""
    stages = state["step"]["stages"]
    if isinstance(stages["best"], float):
        stages["best"] = (stages["best"],)
    return state


# --- results -----------------------------------------------------------------------------------

_PERPLEXITY = Metric(
    "perplexity", higher_is_better=False, unit="perplexity", headline=True, per_example=True
)

UNDECLARED = (
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


def undeclared(measures: Mapping[str, Mapping[str, Any]]) -> tuple[Metric, ...]:
    """Return the metrics of a run of 2841927 that measured these numbers, by split and name."""
    return (*UNDECLARED, *_of_losses_and_parts(measures))


def _of_losses_and_parts(measures: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of further losses, and of objectives that are not ours."""
    known = {metric.name: metric for metric in UNDECLARED}
    for name in dict.fromkeys(name for measured in measures.values() for name in measured):
        parts = name.split("/")
        at = next((at for at, part in enumerate(parts) if part in known), None)
        if at is None:
            yield Metric(name or "unnamed", higher_is_better=False)
        elif at > 0:
            prefixed = "/".join(parts[: at + 1])
            yield replace(known[parts[at]], name=prefixed, headline=False, per_example=False)
