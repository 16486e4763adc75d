"""Pretrain Transformer language models and adapt them to tasks, driven by YAML configs."""

__version__ = "0.1.0"
