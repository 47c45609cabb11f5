"""What a recurrent layer keeps per sequence: elements of its convolution and of its state. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast

from app.errors import InvalidInput
from app.planner.attention import head_size
from app.planner.fields import Fields, Finding

RecurrenceKind = Literal["gated_delta_net", "mamba1", "mamba2", "short_conv", "lightning"]
StateDtype = Literal["float32", "bfloat16", "float16"]
DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
#: The convolution's elements are always of the model's own type.
CONVOLUTION_BYTES: Final = 2


@dataclass(frozen=True)
class Recurrence:
    """One recurrent layer. Workers share heads and channels evenly; groups that cannot be shared are copied."""

    kind: RecurrenceKind
    heads: int
    channels: int
    taps: int
    per_head: tuple[int, ...]
    dtype: StateDtype
    groups: int = 0
    group_width: int = 0
    divisors: tuple[tuple[str, int], ...] = ()

    def convolution_elements(self, workers: int = 1) -> int:
        """On each worker."""
        extra = 0 if not self.groups or self.groups % workers == 0 else workers - self.groups
        return (self.channels + (self.groups + extra) * self.group_width) // workers * self.taps

    def state_elements(self, workers: int = 1) -> int:
        """On each worker, without the convolution."""
        elements = self.heads // workers
        for size in self.per_head:
            elements *= size
        return elements if self.per_head else 0

    def state_bytes(self, element_bytes: int, workers: int = 1) -> int:
        """One layer's state of one sequence, on each worker."""
        return self.convolution_elements(workers) * CONVOLUTION_BYTES + self.state_elements(workers) * element_bytes

    def check_workers(self, workers: int) -> None:
        """Raise InvalidInput when the heads cannot be shared evenly."""
        for name, count in self.divisors:
            if count % workers:
                sentence = (
                    "world_size is %(workers)s: %(name)s = %(count)s cannot be shared evenly among so many workers."
                )
                values = {"workers": workers, "name": name, "count": count}
                raise InvalidInput(sentence, path="world_size", values=values)


Read = tuple[Recurrence, list[Finding]]


def read_recurrence(fields: Fields) -> Read:
    """The recurrent layers of a config; what is missing is named."""
    if fields.has("linear_num_value_heads", "linear_num_key_heads"):
        return _gated_delta_net(fields)
    if fields.has("conv_L_cache"):
        return _short_convolution(fields)
    if fields.has("mamba_num_heads"):
        return _mamba2_nemotron(fields)
    if fields.has("mamba_n_heads"):
        return _mamba2(fields)
    if fields.has("mamba_d_state"):
        return _mamba1(fields)
    if fields.has("attn_type_list") or fields.is_family("minimax"):
        return _lightning(fields)
    sentence = "%(path)s is missing: nothing says how large the recurrent layers' state is."
    raise fields.fault("linear_num_value_heads", sentence)


def _gated_delta_net(fields: Fields) -> Read:
    key_heads, value_heads = fields.need("linear_num_key_heads"), fields.need("linear_num_value_heads")
    key_size, value_size = fields.need("linear_key_head_dim"), fields.need("linear_value_head_dim")
    dtype, findings = _dtype(fields, "float32" if fields.is_family("qwen3_5") else "bfloat16")
    layer = Recurrence(
        kind="gated_delta_net",
        heads=value_heads,
        channels=2 * key_heads * key_size + value_heads * value_size,
        taps=fields.need("linear_conv_kernel_dim") - 1,
        per_head=(key_size, value_size),
        dtype=dtype,
        divisors=(("linear_num_key_heads", key_heads), ("linear_num_value_heads", value_heads)),
    )
    return layer, findings


def _mamba2_nemotron(fields: Fields) -> Read:
    dtype, findings = _dtype(fields, "float32")
    heads, size, state = fields.need("mamba_num_heads"), fields.need("mamba_head_dim"), fields.need("ssm_state_size")
    taps = fields.need("conv_kernel") - 1
    return _second(heads, size, state, fields.need("n_groups"), taps, dtype, "mamba_num_heads"), findings


def _mamba2(fields: Fields) -> Read:
    """Granite, Bamba, Falcon-H1. Their configuration classes have one group and four taps unless told."""
    dtype, findings = _dtype(fields, "bfloat16")
    kernel, of_kernel = class_default(fields, "mamba_d_conv", 4)
    groups, of_groups = class_default(fields, "mamba_n_groups", 1)
    heads, state = fields.need("mamba_n_heads"), fields.need("mamba_d_state")
    layer = _second(heads, _mamba2_head(fields, heads), state, groups, kernel - 1, dtype, "mamba_n_heads")
    return layer, [*findings, *of_kernel, *of_groups]


def _mamba2_head(fields: Fields, heads: int) -> int:
    """`mamba_d_head`, or the inner width over the heads where it is "auto"."""
    if fields.raw("mamba_d_head") not in (None, "auto"):
        return fields.need("mamba_d_head")
    width = fields.number("mamba_d_ssm") or fields.need("mamba_expand") * fields.need("hidden_size")
    if width % heads:
        sentence = "%(path)s is missing, and the inner width %(width)s / mamba_n_heads %(heads)s is no whole number."
        raise fields.fault("mamba_d_head", sentence, width=width, heads=heads)
    return width // heads


def _second(heads: int, size: int, state: int, groups: int, taps: int, dtype: StateDtype, name: str) -> Recurrence:
    return Recurrence(
        kind="mamba2",
        heads=heads,
        channels=heads * size,
        taps=taps,
        per_head=(size, state),
        dtype=dtype,
        groups=groups,
        group_width=2 * state,
        divisors=((name, heads),),
    )


def _mamba1(fields: Fields) -> Read:
    dtype, findings = _dtype(fields, "float32")
    width = fields.need("mamba_expand") * fields.need("hidden_size")
    layer = Recurrence(
        kind="mamba1",
        heads=width,
        channels=width,
        taps=fields.need("mamba_d_conv") - 1,
        per_head=(fields.need("mamba_d_state"),),
        dtype=dtype,
        divisors=(("mamba_expand x hidden_size", width),),
    )
    return layer, findings


def _short_convolution(fields: Fields) -> Read:
    width = fields.need("hidden_size")
    layer = Recurrence(
        kind="short_conv",
        heads=0,
        channels=width,
        taps=fields.need("conv_L_cache") - 1,
        per_head=(),
        dtype="bfloat16",
        divisors=(("hidden_size", width),),
    )
    return layer, []


def _lightning(fields: Fields) -> Read:
    dtype, findings = _dtype(fields, "float32")
    heads = fields.need("num_attention_heads")
    size, _ = head_size(fields)
    layer = Recurrence("lightning", heads, 0, 0, (size, size), dtype, divisors=(("num_attention_heads", heads),))
    return layer, findings


def class_default(fields: Fields, name: str, value: int) -> tuple[int, list[Finding]]:
    """A field, or the value that the model's own configuration class has for it, and then said so."""
    found = fields.number(name)
    if found is not None:
        return found, []
    message = f"{fields.path(name)} is missing; {value} is used, as the model's own configuration class does."
    return value, [fields.note("class_default", name, message, value=value)]


def _dtype(fields: Fields, usual: StateDtype) -> tuple[StateDtype, list[Finding]]:
    """The state's type: as declared, else what the model's reference code keeps, and then said so."""
    name = fields.first("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    declared = fields.raw(name)
    if declared is None or declared == "auto":
        message = (
            f"No field declares the type of the recurrent state; {usual} is counted. "
            "With --mamba-ssm-cache-dtype for the engine, choose the same here."
        )
        return usual, [fields.note("state_dtype_assumed", name, message, dtype=usual)]
    if not isinstance(declared, str) or declared not in DTYPE_BYTES:
        sentence = '%(path)s must be float32, bfloat16 or float16, not "%(value)s".'
        raise fields.fault(name, sentence, value=str(declared)[:40])
    return cast(StateDtype, declared), []
