"""Import-only sgl_kernel: SGLang's compiled operators, which have no CPU build on PyPI.

Registering no operator makes SGLang fall back to its own torch code. Only the names that its CPU
branch imports at module level exist here, and each raises if it is called.
"""

from collections.abc import Callable
from typing import Any


def __getattr__(name: str) -> Callable[..., Any]:
    if not name.endswith("_cpu"):
        raise AttributeError(f"module 'sgl_kernel' has no attribute {name!r}")

    def no_kernel(*_args: object, **_kwargs: object) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name}: the test engine has no compiled kernels")

    return no_kernel
