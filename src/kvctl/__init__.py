"""kvctl: the control panel of a GPU host that serves a model with SGLang."""

__version__ = "0.1.0"
