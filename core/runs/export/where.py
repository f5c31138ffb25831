"""Which answers are meant: comparisons over the fields of a record, such as `finish == 'stop'`.

The text is parsed, never run: comparisons of named fields with plain values, joined by `and`,
`or`, `not` and brackets, and nothing else.
"""

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from kvctl.core.domain.errors import UsageError

TEXTS = ("id", "partition", "finish", "server", "launch", "model", "weight_version", "source")
"""Fields that are text; `source` is "run" or "done_from"."""
NUMBERS = (
    "attempt",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "e2e_latency",
    "t_submit",
    "t_done",
    "segments",
)
"""Fields that are numbers: tokens, seconds, and in how many segments an answer was made."""
_LIMIT = 2_000
_LONE_EQUALS = re.compile(r"(?<![=!<>])=(?!=)")

Fields: TypeAlias = Mapping[str, object]
Where: TypeAlias = Callable[[Fields], bool]
_Value: TypeAlias = Callable[[Fields], object]

_COMPARISONS: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,  # type: ignore[dict-item]
    ast.LtE: operator.le,  # type: ignore[dict-item]
    ast.Gt: operator.gt,  # type: ignore[dict-item]
    ast.GtE: operator.ge,  # type: ignore[dict-item]
    ast.In: lambda value, values: value in values,  # type: ignore[operator]
    ast.NotIn: lambda value, values: value not in values,  # type: ignore[operator]
}


class WhereError(UsageError):
    """A condition cannot be understood; the message says what is allowed."""

    def __init__(self, text: str, problem: str) -> None:
        """Tell the problem with the condition it stands in."""
        shown = text if len(text) <= 200 else text[:199] + "…"
        super().__init__(
            f"--where {shown!r}: {problem}; allowed: == != < <= > >= in, and or not, "
            f"texts in quotes, numbers, None, and the fields {', '.join(TEXTS + NUMBERS)}"
        )


def parse_where(text: str) -> Where:
    """Return the condition that a text states.

    A field that a record does not know (None) matches no comparison except with None itself.

    Raises:
        WhereError: It is no such condition, or compares a text with a number.

    >>> few = parse_where("finish == 'stop' and 0 < completion_tokens < 8000")
    >>> few({"finish": "stop", "completion_tokens": 12})
    True
    """
    if len(text) > _LIMIT:
        raise WhereError(text, f"longer than {_LIMIT:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a text is not worth a warning
            tree = ast.parse(text.strip(), mode="eval")
        return _Compiler(text).condition(tree.body)
    except SyntaxError:
        hint = "use == to compare" if _LONE_EQUALS.search(text) else "not a condition"
        raise WhereError(text, hint) from None
    except (ValueError, RecursionError, MemoryError):
        raise WhereError(text, "not a condition") from None


class _Compiler:
    """Turns the parsed text into functions, refusing everything that is not allowed."""

    def __init__(self, text: str) -> None:
        self._text = text

    def condition(self, node: ast.expr) -> Where:
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                parts = [self.condition(value) for value in values]
                return lambda fields: all(part(fields) for part in parts)
            case ast.BoolOp(values=values):
                parts = [self.condition(value) for value in values]
                return lambda fields: any(part(fields) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.condition(operand)
                return lambda fields: not inner(fields)
            case ast.Compare(left=left, ops=ops, comparators=rest):
                return self._chain([left, *rest], ops)
        raise self._wrong(node, "is no comparison")

    def _chain(self, sides: Sequence[ast.expr], ops: Sequence[ast.cmpop]) -> Where:
        links = [
            self._link(left, op, right)
            for left, op, right in zip(sides, ops, sides[1:], strict=False)
        ]
        return lambda fields: all(link(fields) for link in links)

    def _link(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Where:
        compare = _COMPARISONS.get(type(op))
        if compare is None:
            raise self._wrong(right, "cannot be compared with `is`")
        kinds, first = self._side(left)
        if isinstance(op, ast.In | ast.NotIn):
            more, second = self._list(right)
        else:
            more, second = self._side(right)
        both = kinds | more
        if {"text", "number"} <= both:
            raise self._wrong(left, f"and {ast.unparse(right)}: one is a text, one a number")
        if "none" in both:
            if not isinstance(op, ast.Eq | ast.NotEq):
                raise self._wrong(right, "can only be compared with == and !=")
            return lambda fields: compare(first(fields), second(fields))
        return lambda fields: _known(compare, first(fields), second(fields))

    def _side(self, node: ast.expr) -> tuple[set[str], _Value]:
        if isinstance(node, ast.Name):
            return {self._kind(node.id)}, operator.itemgetter(node.id)
        value = self._constant(node)
        return {_kind_of(value)}, lambda _: value

    def _list(self, node: ast.expr) -> tuple[set[str], _Value]:
        if not isinstance(node, ast.List | ast.Tuple | ast.Set):
            raise self._wrong(node, "is no list, such as ('B1', 'B2')")
        values = tuple(self._constant(item) for item in node.elts)
        return {_kind_of(value) for value in values} - {"none"}, lambda _: values

    def _kind(self, name: str) -> str:
        if name in TEXTS:
            return "text"
        if name in NUMBERS:
            return "number"
        raise WhereError(self._text, f"there is no field {name!r}")

    def _constant(self, node: ast.expr) -> object:
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.Constant(value=str() | int() | float() | None as value):
                return value
        raise self._wrong(node, "is neither a field nor a plain value")

    def _wrong(self, node: ast.expr, problem: str) -> WhereError:
        return WhereError(self._text, f"{ast.unparse(node)} {problem}")


def _kind_of(value: object) -> str:
    if value is None:
        return "none"
    return "text" if isinstance(value, str) else "number"


def _known(compare: Callable[[object, object], bool], left: object, right: object) -> bool:
    if left is None or right is None:
        return False
    try:
        return compare(left, right)
    except TypeError:
        return False  # a record of another client may hold anything under a name
