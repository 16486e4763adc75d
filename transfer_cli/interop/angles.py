"""What a published config says of rotary positions and windows, as versions write it.

Since 2026 `rope_parameters` holds all that is said of angles, for each kind of block where there
are two, and `layer_types` the kind of each block. Before, each had keys of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transfer_cli.interop.family import ConfigPart
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.model.shape import BackboneShape, Rotary, RotaryScaling

GLOBAL, LOCAL = "full_attention", "sliding_attention"
"""What `layer_types` calls blocks that see everything, and those with a window."""

_LLAMA3 = {
    "original_positions": ("original_max_position_embeddings", int),
    "low_factor": ("low_freq_factor", float), "high_factor": ("high_freq_factor", float),
}  # fmt: skip


@dataclass(frozen=True)
class Angles(ConfigPart):
    """The angles of a family whose blocks all have the same.

    Args:
        usual_share: The share of a head that is turned where the config does not say; None: the
            family turns whole heads.
        older: Further keys of configs from before 2026, and what these are called today.
    """

    usual_share: float | None = None
    older: Mapping[str, str] = field(default_factory=dict)

    def read(self, settings: PublishedConfig, before: Mapping[str, Any]) -> Mapping[str, Any]:
        older = {today: settings.values.get(key) for key, today in self.older.items()}
        settings = replace(settings, values={**older, **settings.values})
        # Of both, transformers takes the older one.
        angles = _mapping_at(settings, "rope_scaling") or _mapping_at(settings, "rope_parameters")
        return {"rotary": _build_rotary(settings, angles, self.usual_share)}

    def write(self, shape: BackboneShape) -> Mapping[str, Any]:
        rotary = shape.rotary
        angles = _rope_parameters(rotary)
        scaling = {} if rotary.scaling is None else {"rope_scaling": angles}
        known = {"rope_theta": rotary.base, "partial_rotary_factor": rotary.share}
        older = {key: known[today] for key, today in self.older.items()}
        return {"rope_theta": rotary.base, "rope_parameters": angles, **scaling, **older}


@dataclass(frozen=True)
class TwoKinds(ConfigPart):
    """How a family with two kinds of blocks calls their angles and their order in older configs.

    Args:
        base_keys: The keys of the bases in blocks that see everything, and in those with a window.
        defaults: Their values where a config lacks them.
        every_key: The key that says that each block of so many sees everything.
        usual_every: Its value where a config lacks it.
        global_first: Whether the first of so many does; else the last.
    """

    base_keys: tuple[str, str]
    defaults: tuple[float, float]
    every_key: str
    usual_every: int
    global_first: bool

    def read(self, settings: PublishedConfig, before: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the angles, and which blocks see everything."""
        by_kind = _mapping_at(settings, "rope_parameters")
        kinds = [
            {
                "rope_theta": settings.value(key, base, float),
                **_checked_mapping(settings, by_kind.get(kind)),
            }
            for key, base, kind in zip(self.base_keys, self.defaults, (GLOBAL, LOCAL), strict=True)
        ]
        kinds[0] |= _mapping_at(settings, "rope_scaling")
        whole, local = (_build_rotary(settings, angles) for angles in kinds)
        if local.scaling is not None:
            raise settings.error("rope_parameters", f"no scaling of {LOCAL}")
        period = settings.value(self.every_key, self.usual_every, int)
        start = 0 if self.global_first else period - 1
        is_local = [block % max(1, period) != start for block in range(before["depth"])]
        order = read_order(settings, [LOCAL if local else GLOBAL for local in is_local])
        return {"rotary": replace(whole, local_base=local.base), **order}

    def write(self, shape: BackboneShape) -> Mapping[str, Any]:
        rotary = shape.rotary
        local = Rotary(rotary.base if rotary.local_base is None else rotary.local_base)
        scaling = {} if rotary.scaling is None else {"rope_scaling": _rope_parameters(rotary)}
        return {
            "layer_types": [LOCAL if has_window else GLOBAL for has_window in shape.has_window],
            **dict(zip(self.base_keys, (rotary.base, local.base), strict=True)),
            "rope_parameters": {GLOBAL: _rope_parameters(rotary), LOCAL: _rope_parameters(local)},
            **scaling,
        }


def read_order(settings: PublishedConfig, usual: Sequence[str]) -> dict[str, int]:
    """Return which blocks see everything; `usual` is the kind of each where no key says it."""
    depth, kinds = len(usual), settings.get("layer_types", usual)
    known = isinstance(kinds, list) and all(kind in (GLOBAL, LOCAL) for kind in kinds)
    if not known or len(kinds) != depth:
        raise settings.error("layer_types", f"a list of {depth} times {GLOBAL} or {LOCAL}")
    whole = [block for block, kind in enumerate(kinds) if kind == GLOBAL]
    if not whole:
        return {"global_every": 0, "global_from": 0}
    first = whole[0]
    period = whole[1] - first if len(whole) > 1 else depth
    if whole != [block for block in range(depth) if (block - first) % period == 0]:
        raise settings.error("layer_types", f"{GLOBAL} at equal distances")
    return {"global_every": period, "global_from": first}


def _build_rotary(
    settings: PublishedConfig, angles: Mapping[str, Any], usual_share: float | None = None
) -> Rotary:
    rope = replace(settings, values={**settings.values, **angles})
    # `type` is what `rope_type` was called in 2023.
    kind = angles.get("rope_type", angles.get("type", "default"))
    base = rope.value("rope_theta", 10_000.0, float)
    if usual_share is None:
        rope.require("partial_rotary_factor", 1.0)
    share = rope.value("partial_rotary_factor", usual_share or 1.0, float)
    if kind == "default":
        return Rotary(base, share)
    if kind not in ("linear", "llama3"):
        named = replace(settings, values={"rope_type": kind})
        raise named.error("rope_type", "one of default, linear, llama3")
    more: dict[str, Any] = {}
    if kind == "llama3":
        more = {name: rope.value(key, None, of) for name, (key, of) in _LLAMA3.items()}
    scaling = RotaryScaling(kind, rope.value("factor", None, float), **more)
    return Rotary(base, share, scaling)


def _rope_parameters(rotary: Rotary) -> dict[str, Any]:
    scaling, angles = rotary.scaling, {"rope_theta": rotary.base, "rope_type": "default"}
    if rotary.share != 1:
        angles["partial_rotary_factor"] = rotary.share
    if scaling is None:
        return angles
    angles |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        angles |= {key: getattr(scaling, name) for name, (key, _) in _LLAMA3.items()}
    return angles


def _mapping_at(settings: PublishedConfig, key: str) -> Mapping[str, Any]:
    return _checked_mapping(settings, settings.values.get(key), key)


def _checked_mapping(
    settings: PublishedConfig, value: Any, key: str = "rope_parameters"
) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise settings.error(key, "a mapping")
    return value or {}
