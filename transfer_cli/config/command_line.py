"""What the user typed and chose."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from omegaconf import OmegaConf


@dataclass(frozen=True)
class CommandLine:
    """What the user typed and chose; nothing for a config that was not composed from a shell.

    Args:
        overrides: What was typed, as Hydra read it.
        presets: The option chosen for each config group.
    """

    overrides: tuple[str, ...] = ()
    presets: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_this_command(cls) -> "CommandLine":
        """Return what Hydra knows of the command at work."""
        from hydra.core.hydra_config import HydraConfig

        if not HydraConfig.initialized():
            return cls()
        hydra = HydraConfig.get()
        # As typed: an interpolation in an override means nothing where Hydra keeps it. A list of
        # words comes out, which the annotation of `to_container` cannot say.
        typed = OmegaConf.to_container(hydra.overrides.task, resolve=False)
        presets = {
            str(group): str(option)
            for group, option in sorted(hydra.runtime.choices.items())
            if option is not None and not str(group).startswith(("hydra/", "schema"))
        }
        return cls(tuple(str(override) for override in typed), presets)  # type: ignore[union-attr]
