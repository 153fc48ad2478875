"""The faults that can be put into a source file: each a changed syntax tree, named by its line and what changed."""

import ast
import copy
import dataclasses
from collections.abc import Callable, Iterator

SWAPPED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin", "sum": "prod"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        line: where it is.
        code: the statement's first line as it was.
        change: what was changed, in code.
        tree: the whole file with the fault.
    """

    line: int
    code: str
    change: str
    tree: ast.Module = dataclasses.field(compare=False)

    @property
    def name(self) -> tuple[str, str]:
        """What it is found again by, wherever the line has moved to."""
        return self.code, self.change


Change = tuple[str, Callable[[ast.AST], ast.AST | None]]


def mutants(source: str) -> list[Mutant]:
    """Every fault for a file; messages of errors, annotations, docstrings and assertions are left alone.

    >>> [mutant.change for mutant in mutants("def f(x):\\n    return x + 1 if x > 0 else None")]
    ['x > 0 -> x >= 0', 'x > 0 -> not x > 0', '0 -> 1', 'x + 1 -> x - 1', '1 -> 2']
    """
    tree, lines = ast.parse(source), source.splitlines()
    result: dict[tuple[int, int, str], Mutant] = {}
    for path, node in _places(tree, ()):
        for change, make in _changes(node, path[-1][0]):
            changed = copy.deepcopy(tree)
            parent, field, index = _follow(changed, path)
            new = make(copy.deepcopy(node))
            if index is None:
                setattr(parent, field, new)
            else:
                getattr(parent, field)[index : index + 1] = [] if new is None else [new]
            ast.fix_missing_locations(changed)
            key = (node.lineno, node.col_offset, change)
            result.setdefault(key, Mutant(node.lineno, lines[node.lineno - 1].strip(), change, changed))
    return sorted(result.values(), key=lambda mutant: mutant.line)


def _places(node: ast.AST, path: tuple) -> Iterator[tuple[tuple, ast.AST]]:
    """Every node that may change, with the way to it."""
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_params", "bases", "ctx"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _only_words(child) and not _is_type(child):
                here = (*path, (field, index))
                if hasattr(child, "lineno"):
                    yield here, child
                yield from _places(child, here)


def _only_words(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_type(node: ast.AST) -> bool:
    """``Share = Literal[...] | ...`` and the like, which nothing reads while the program runs."""
    if not isinstance(node, ast.Assign):
        return False
    return any(isinstance(part, ast.Name) and part.id in ("Literal", "Callable", "TypeVar") for part in ast.walk(node))


def _follow(tree: ast.AST, path: tuple) -> tuple[ast.AST, str, int | None]:
    for field, index in path[:-1]:
        value = getattr(tree, field)
        tree = value if index is None else value[index]
    return tree, *path[-1]


def _changes(node: ast.AST, field: str) -> Iterator[Change]:
    """The ways to change a node that stands in a field of its parent, each in words and as a function."""
    before = " ".join(ast.unparse(node).split())

    def to(**fields: object) -> Change:
        after = _with(copy.deepcopy(node), **fields)
        return f"{before} -> {' '.join(ast.unparse(after).split())}", lambda node: _with(node, **fields)

    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPPED:
        yield to(op=SWAPPED[type(node.op)]())
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield to(ops=[*node.ops[:i], SWAPPED[type(op)](), *node.ops[i + 1 :]])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield f"{before} -> {ast.unparse(node.operand)}", lambda node: node.operand
    elif isinstance(node, ast.Constant) and (value := _other(node.value)) is not None:
        yield to(value=value)
    elif isinstance(node, ast.Call):
        for i, keyword in enumerate(node.keywords):
            if keyword.arg not in (None, "strict"):  # strict= guards against lists that are equally long anyway
                yield to(keywords=[*node.keywords[:i], *node.keywords[i + 1 :]])
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield to(id=NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield to(attr=NAMES[node.attr])
    elif isinstance(node, ast.Slice):
        for end in ("lower", "upper", "step"):
            if getattr(node, end) is not None:
                yield to(**{end: None})
    if field == "test":
        yield f"{before} -> not {before}", lambda node: ast.UnaryOp(ast.Not(), node)
    if field == "decorator_list":
        yield f"@{before} -> nothing", lambda node: None
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield f"{before} -> nothing", lambda node: ast.copy_location(ast.Pass(), node)


def _other(value: object) -> object:
    """Another constant of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.5 + 0.1 * (value == 0)
    if isinstance(value, str) and value:
        return value + "_"
    return None


def _with(node: ast.AST, **fields: object) -> ast.AST:
    for name, value in fields.items():
        setattr(node, name, value)
    return node
