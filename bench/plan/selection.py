"""`-k EXPRESSION` over the names of cells."""

import ast
import contextlib
import re
from collections.abc import Callable

from bench.plan.option_values import BadInput


def keyword(text: str) -> str:
    """Rewrite `data=2,model=4` so that pytest's -k can parse it, with every value delimited.

    Expressions and cell names are rewritten in the same way, so that `data=1` matches
    `data=1,model=2` but not `data=16`.
    """
    return re.sub(r"(\w+)=([\w.+-]+),?", r":\1.\2:", text)


def selector(expression: str) -> Callable[[str], bool]:
    """Compile an expression of words, `and`, `or`, `not` and parentheses to a predicate on names.

    A word matches anywhere in a name, ignoring case. An empty expression selects everything.
    Raises BadInput if the expression has another form.
    """
    words: list[str] = []

    def named(found: re.Match[str]) -> str:
        if found[0] in ("and", "or", "not"):
            return found[0]
        words.append(found[0].lower())
        return f"w{len(words) - 1}"

    text = re.sub(r"[^\s()]+", named, keyword(expression)).strip()
    if not text:
        return everything
    tree = None
    with contextlib.suppress(SyntaxError):
        tree = ast.parse(text, mode="eval")
    half = any("=" in word for word in words)  # an axis without its size, as `data=`
    if half or tree is None or not all(isinstance(node, _ALLOWED) for node in ast.walk(tree)):
        raise BadInput(
            [f"-k: {expression!r} is not an expression of words, and, or, not, and parentheses"]
        )
    code = compile(tree, "-k", "eval")

    def matches(name: str) -> bool:
        text = keyword(name).lower()
        found = {f"w{number}": word in text for number, word in enumerate(words)}
        return bool(eval(code, found))  # noqa: S307 (only of names and what is in _ALLOWED)

    return matches


def everything(_name: str) -> bool:
    """Select every cell."""
    return True


_LOGIC = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not)
_ALLOWED = (ast.Expression, *_LOGIC, ast.Name, ast.Load)
