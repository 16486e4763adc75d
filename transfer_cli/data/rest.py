"""The training examples that few labels leave out, as texts to learn from without labels."""

from dataclasses import dataclass, replace

from transfer_cli.data.labelled import LabelledData
from transfer_cli.errors import ConfigError


@dataclass(frozen=True)
class Rest:
    """What `data.labelled` leaves out of the main data, as the data of a further stream."""


def rest_of(main: LabelledData, key: str) -> LabelledData:
    """Return what `data.labelled` leaves out, without labels, as training examples.

    Raises:
        ConfigError: That is nothing; the message begins with the key of the stream.
    """
    if not main.rest:
        raise ConfigError(
            f"{key}.data: all examples of the main data keep their labels; say how many do by "
            "data.labelled=N"
        )
    return replace(main, splits={"train": main.rest}, part_of={}, rest=())
