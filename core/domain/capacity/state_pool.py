"""How a hybrid model's memory is shared between request states (mamba, GDN) and KV.

Pure. Models without linear-attention layers give all of their budget to KV.

Source: _handle_max_mamba_cache and _calculate_mamba_ratio, mem_cache/kv_cache_configurator.py,
0.5.23; handle_max_mamba_cache, model_runner_kv_cache_mixin.py, 0.5.10.
"""

from kvctl.core.domain.capacity.model_layers import LayerKind
from kvctl.core.domain.capacity.model_shape import ModelShape
from kvctl.core.domain.presets.serving_flags import ServingFlags

_SLOTS_WITH_RADIX = 3
"""State slots that one running request needs; up to 5 with the extra-buffer scheduler."""


def keeps_state(shape: ModelShape) -> bool:
    """Whether some layers keep a state of fixed size for a request."""
    return shape.count(LayerKind.LINEAR, LayerKind.BOTH) > 0


def slot_bytes(shape: ModelShape, flags: ServingFlags) -> int | None:
    """Return the bytes of one request's state on the fullest GPU, None where not known."""
    if shape.state is None:
        return None
    layers = shape.count(LayerKind.LINEAR, LayerKind.BOTH)
    on_stage = -(-layers // flags.layout.pp)
    return shape.state.bytes_per_request(flags.layout.attn_tp) * on_stage


def fixed_slots(flags: ServingFlags) -> int | None:
    """Return the slots that flags ask for, None where they follow from the memory."""
    if flags.mamba_slots is not None:
        return max(1, flags.mamba_slots // flags.layout.attn_dp)
    if not flags.has_radix_cache and flags.max_running is not None:
        return max(1, flags.max_running // flags.layout.attn_dp)
    return None


def kv_part(rest: float, shape: ModelShape, flags: ServingFlags) -> float:
    """Return the bytes of a budget that are left for KV."""
    if not keeps_state(shape):
        return rest
    slots = fixed_slots(flags)
    if slots is None:
        return rest / (1 + flags.mamba_ratio)
    return rest - (slots + 1) * (slot_bytes(shape, flags) or 0)


def whole_budget(kv: float, shape: ModelShape, flags: ServingFlags) -> float:
    """Return the budget of which `kv` is the KV part."""
    if not keeps_state(shape):
        return kv
    slots = fixed_slots(flags)
    if slots is None:
        return kv * (1 + flags.mamba_ratio)
    return kv + (slots + 1) * (slot_bytes(shape, flags) or 0)


def state_slots(rest: float, shape: ModelShape, flags: ServingFlags) -> int | None:
    """Return how many request states a budget holds, None without states or where not known."""
    if not keeps_state(shape):
        return None
    slots, each = fixed_slots(flags), slot_bytes(shape, flags)
    if slots is not None or not each:
        return slots
    share = rest * flags.mamba_ratio / (1 + flags.mamba_ratio)
    return max(0, int(share // each) - 1)


def requests_of_slots(slots: int, flags: ServingFlags) -> int:
    """Return how many requests may run with so many state slots."""
    return slots // (_SLOTS_WITH_RADIX if flags.has_radix_cache else 1)
