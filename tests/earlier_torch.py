"""Torch's autocast before 2.11, which keeps casts of weights without their gradients."""

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


class EarlierAutocast(TorchFunctionMode):
    """Multiplies in bfloat16, and casts each weight once, as the first product has it."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.kept = {}
        monkeypatch.setattr(torch, "clear_autocast_cache", self.kept.clear)

    def cast(self, value):
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
            return value
        if not (value.requires_grad and value.is_leaf):
            return value.bfloat16()
        if id(value) not in self.kept:
            self.kept[id(value)] = value.bfloat16()
        return self.kept[id(value)]

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (F.linear, torch.Tensor.matmul):
            args = map(self.cast, args)
        return function(*args, **(kwargs or {}))
