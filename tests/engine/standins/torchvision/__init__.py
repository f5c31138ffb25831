"""Import-only torchvision: only image models run it, and its wheel wants another torch build."""

import import_only  # type: ignore[import-not-found]  # found through the engine's PYTHONPATH

__version__ = "0.28.0"
__getattr__ = import_only.serve(__name__)
