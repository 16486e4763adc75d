"""What is typed of beam search, and cannot be; needs no torch."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transfer_cli.config.build import TARGET
from transfer_cli.config.part_values import check_values
from transfer_cli.config.schema import BeamsConfig, GenerateConfig
from transfer_cli.errors import ConfigError

_SEARCH = "transfer_cli.objectives.beam_search.BeamSearch"
_SAMPLING_KEYS = ("temperature", "top_k", "top_p", "samples")


def typed_beams(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said of a search."""
    names = (field.name for field in fields(BeamsConfig))
    return {name: values[name] for name in names if values.get(name) is not None}


def check_beams(values: Mapping[str, Any], key: str) -> None:
    """Refuse a search that cannot be; `key` is that of the section of the values."""
    typed = typed_beams(values)
    check_values({TARGET: _SEARCH, **typed}, key)
    if "max_tokens" not in values:
        return
    if typed.get("beams", 1) > 1:
        for name in _SAMPLING_KEYS:
            if values[name] != GenerateConfig.__dataclass_fields__[name].default:
                raise ConfigError(
                    f"{name}: beams={typed['beams']} looks for the likeliest text and draws none; "
                    "leave one of the two out"
                )
    elif others := typed.keys() - {"beams"}:
        raise ConfigError(f"{min(others)}: is for a search; say beams=4 as well, or leave it out")
