"""What the user typed and chose."""

from omegaconf import OmegaConf


def chosen_presets() -> dict[str, str]:
    """Return the option chosen for each config group of this run."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return {}
    choices = HydraConfig.get().runtime.choices
    return {
        str(group): str(option)
        for group, option in sorted(choices.items())
        if option is not None and not str(group).startswith(("hydra/", "schema"))
    }


def typed_overrides() -> list[str]:
    """Return what the user typed, as Hydra read it."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return []
    # As typed: an interpolation in an override means nothing where Hydra keeps it. A list of words
    # comes out, which the annotation of `to_container` cannot say.
    typed = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return [str(override) for override in typed]  # type: ignore[union-attr]
