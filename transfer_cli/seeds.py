"""Randomness as a pure function of what it is for.

Nothing in a run draws from a stream that remembers what was drawn before. Order, masking and
dropout come from `(run seed, purpose, step, ...)`, which is why a resumed run needs no random state
and why an extra evaluation cannot change what training does next.

Legend: B examples, T positions.
"""

import hashlib

import torch
from torch import Tensor


def derive(seed: int, *parts: str | int) -> int:
    """Return a seed in [0, 2**63) for the purpose that `parts` name.

    The same arguments give the same seed on every machine; any other arguments give an unrelated
    one.
    """
    text = "/".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class ExampleNoise:
    """Random numbers that belong to an example, wherever and with whomever it is batched.

    Training passes the step among `parts`, so that an example is masked anew at each visit.
    Evaluation leaves it out, so that two evaluations of the same weights agree exactly.

    Args:
        seed: The run's seed.
        parts: What the numbers are for, for example `("train", 120)`.
    """

    def __init__(self, seed: int, *parts: str | int) -> None:
        self._seed = derive(seed, "noise", *parts)

    def uniform(self, index_B: Tensor, length: int, channels: int) -> Tensor:
        """Return uniform numbers in [0, 1), `[B, length, channels]`, on the CPU.

        A longer `length` extends the numbers of a shorter one: padding does not change them.
        """
        generator = torch.Generator()
        rows = []
        for index in index_B.tolist():
            generator.manual_seed(derive(self._seed, index))
            rows.append(torch.rand(length, channels, generator=generator))
        return torch.stack(rows)
