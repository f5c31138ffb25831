"""One declaration of a flag in SGLang's source (a syntax tree) to a `FlagSpec`.

Source: `srt/arg_groups/arg_utils.py add_cli_args_from_dataclass` (0.5.23) for annotated fields,
`argparse.add_argument` for the rest. What only running the code could tell (choices collected
from plugins, computed defaults) is left open rather than guessed.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kvctl.core.domain.presets.flags import FlagKind, FlagSpec

_KINDS = {
    "int": FlagKind.INTEGER,
    "float": FlagKind.NUMBER,
    "str": FlagKind.TEXT,
    "bool": FlagKind.SWITCH,
    "human_readable_int": FlagKind.QUANTITY,
    "json.loads": FlagKind.JSON,
    "json_list_type": FlagKind.JSON,
}
_SWITCH_ACTIONS = ("store_true", "store_false", "store_const")
_LISTS = ("List", "list", "Sequence", "tuple", "Tuple")


@dataclass(frozen=True, slots=True)
class Constants:
    """What the source defines at module level: lists of choices, and actions that refuse."""

    named: Mapping[str, tuple[str, ...]]
    refusing: frozenset[str] = frozenset()
    """Actions whose first deed is to raise: SGLang ends at a flag that has one."""

    @classmethod
    def of(cls, modules: Sequence[ast.Module]) -> "Constants":
        """Collect them from modules, in order; a later one may use an earlier one."""
        named: dict[str, tuple[str, ...]] = {}
        refusing: set[str] = set()
        for tree in modules:
            for statement in tree.body:
                if isinstance(statement, ast.ClassDef) and _raises_at_once(statement):
                    refusing.add(statement.name)
                elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                    target = statement.targets[0]
                    values = cls(named).values(statement.value)
                    if isinstance(target, ast.Name) and values is not None:
                        named[target.id] = values
        return cls(named, frozenset(refusing))

    def values(self, node: ast.expr | None) -> tuple[str, ...] | None:
        """Return the texts of a list expression, None where only running it could tell."""
        match node:
            case ast.Name(id=name):
                return self.named.get(name)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return self._joined(items)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                one, two = self.values(left), self.values(right)
                return None if one is None or two is None else one + two
            case ast.Call(func=ast.Name(id="list" | "sorted" | "tuple"), args=[inner]):
                return self.values(inner)
        return None

    def _joined(self, items: Sequence[ast.expr]) -> tuple[str, ...] | None:
        texts: list[str] = []
        for item in items:
            if isinstance(item, ast.Starred):
                more = self.values(item.value)
                if more is None:
                    return None
                texts += more
            elif isinstance(item, ast.Constant):
                texts.append(str(item.value))
            else:
                return None
        return tuple(texts)


def _raises_at_once(node: ast.ClassDef) -> bool:
    """Whether an action does nothing but raise: DeprecatedAction up to 0.5.6."""
    calls = (f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__call__")
    return any(isinstance(call.body[0], ast.Raise) for call in calls)


def read_field(node: ast.AnnAssign, constants: Constants) -> Iterator[FlagSpec]:
    """Yield the flag of `name: A[type, Arg(…)] = default`; nothing where it has no flag."""
    match node:
        case ast.AnnAssign(
            target=ast.Name(id=field),
            annotation=ast.Subscript(
                value=ast.Name(id="A" | "Annotated"), slice=ast.Tuple(elts=[kind, *notes])
            ),
        ):
            keywords = _argument_notes(notes)
            if keywords is None or _truth(keywords.get("no_cli")):
                return
            name = _text(keywords.get("cli_name")) or field
            spec = _with_type(FlagSpec(_plain(name), FlagKind.TEXT), kind)
            aliases = tuple(map(_plain, constants.values(keywords.get("aliases")) or ()))
            spec = replace(spec, aliases=aliases, default=_default(node.value))
            spec = replace(spec, is_required=node.value is None)
            yield from _with_keywords(spec, keywords, constants)


def read_add_argument(node: ast.Call, constants: Constants) -> FlagSpec | None:
    """Return the flag of an `add_argument("--x", …)` call, None for any other call."""
    if not (isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"):
        return None
    names = [text for word in node.args if (text := _text(word)) and text.startswith("--")]
    if not names:
        return None
    keywords = {word.arg: word.value for word in node.keywords if word.arg}
    kind = _KINDS.get(_dotted(keywords.get("type")), FlagKind.TEXT)
    spec = FlagSpec(
        name=_plain(names[0]),
        kind=kind,
        aliases=tuple(_plain(name) for name in names[1:]),
        default=_default(keywords.get("default")),
        is_required=_truth(keywords.get("required")),
    )
    return next(_with_keywords(spec, keywords, constants))


def _argument_notes(notes: Sequence[ast.expr]) -> dict[str, ast.expr] | None:
    """The keywords of `Arg(…)`; a bare help text is an Arg without any; None without either."""
    for note in notes:
        if isinstance(note, ast.Call) and _dotted(note.func) == "Arg":
            return {word.arg: word.value for word in note.keywords if word.arg}
        if isinstance(note, ast.Constant | ast.JoinedStr | ast.BinOp):
            return {"help": note}
    return None


def _with_type(spec: FlagSpec, node: ast.expr) -> FlagSpec:
    """Add what the annotation says: `Optional[X]`, `X | None`, `Literal[…]`, `List[X]`, `bool`."""
    match node:
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return _with_type(spec, inner)
        case ast.BinOp(left=inner, op=ast.BitOr(), right=ast.Constant(value=None)):
            return _with_type(spec, inner)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            return replace(spec, choices=Constants({}).values(values) or _single(values))
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _LISTS:
            return replace(_with_type(spec, inner), takes_many=True)
        case ast.Name(id=name):
            return replace(spec, kind=_KINDS.get(name, FlagKind.TEXT))
    return spec


def _single(node: ast.expr) -> tuple[str, ...]:
    return (str(node.value),) if isinstance(node, ast.Constant) else ()


def _with_keywords(
    spec: FlagSpec, keywords: Mapping[str, ast.expr], constants: Constants
) -> Iterator[FlagSpec]:
    extra = keywords.get("action_kwargs")
    if isinstance(extra, ast.Dict):
        given = {_text(key): value for key, value in zip(extra.keys, extra.values, strict=True)}
        keywords = {**keywords, **{name: value for name, value in given.items() if name}}
    parser = _dotted(keywords.get("type_parser"))
    if parser:
        # A parser takes the value as one text, whatever the annotation says.
        spec = replace(spec, kind=_KINDS.get(parser, FlagKind.TEXT), takes_many=False)
    choices = constants.values(keywords.get("choices"))
    if choices is not None:
        spec = replace(spec, choices=choices)
    elif "choices" in keywords:
        spec = replace(spec, choices=())
    nargs = _text(keywords.get("nargs"))
    if nargs:
        spec = replace(spec, takes_many=nargs in "+*", may_be_bare=nargs in "?*")
    if words := _text(keywords.get("help")):
        spec = replace(spec, help=" ".join(words.split()))
    action = _text(keywords.get("action")) or _dotted(keywords.get("action")).rpartition(".")[2]
    for flag in _with_action(spec, action, keywords):
        yield replace(flag, is_removed=True) if action in constants.refusing else flag


def _with_action(
    spec: FlagSpec, action: str, keywords: Mapping[str, ast.expr]
) -> Iterator[FlagSpec]:
    if action in _SWITCH_ACTIONS:
        spec = replace(spec, kind=FlagKind.SWITCH)
    elif action == "BooleanOptionalAction":
        spec = replace(spec, kind=FlagKind.SWITCH)
        yield replace(spec, aliases=(*spec.aliases, f"no-{spec.name}"))
        return
    elif action == "LoRAPathAction":
        spec = replace(spec, takes_many=True)
    elif action.startswith("Deprecated"):
        spec = _deprecated(spec, action, keywords)
    yield spec


def _deprecated(spec: FlagSpec, action: str, keywords: Mapping[str, ast.expr]) -> FlagSpec:
    error = _text(keywords.get("error_message"))
    successor = _text(keywords.get("new_flag")) or error or ""
    takes_value = action == "DeprecatedAliasStoreAction" or (
        action == "DeprecatedStoreConstAction" and "choices" in keywords
    )
    kind = spec.kind if takes_value else FlagKind.SWITCH
    return replace(spec, successor=successor.strip(), is_removed=bool(error), kind=kind)


def _default(node: ast.expr | None) -> str | None:
    """The default as written: a constant's text; None for none and for what is computed."""
    match node:
        case ast.Constant(value=None) | None:
            return None
        case ast.Constant(value=value):
            return str(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)):
            return f"-{value!s}"
    return None


def _plain(name: str) -> str:
    return name.removeprefix("--").replace("_", "-")


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _truth(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _dotted(node: ast.expr | None) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=name):
            return f"{_dotted(inner)}.{name}" if _dotted(inner) else name
    return ""
