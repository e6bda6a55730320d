"""`-k EXPRESSION` over the names of cells."""

import re
from collections.abc import Callable

from _pytest.mark.expression import Expression

from bench.plan.option_values import BadInput


def keyword(text: str) -> str:
    """Rewrite `data=2,model=4` so that pytest's -k can parse it, with every value delimited.

    Expressions and cell names are rewritten in the same way, so that `data=1` matches
    `data=1,model=2` but not `data=16`.
    """
    return re.sub(r"(\w+)=([\w.+-]+),?", r":\1.\2:", text).replace(",", ":")


def selector(expression: str) -> Callable[[str], bool]:
    """Compile an expression of words, `and`, `or`, `not` and parentheses to a predicate on names.

    A word matches anywhere in a name, ignoring case. An empty expression selects everything.
    Raises BadInput if the expression has another form. The syntax is that of pytest's -k.
    """
    if not expression.strip():
        return lambda _: True
    try:
        compiled = Expression.compile(keyword(expression))
    except Exception as error:
        fault = f"{expression!r} is not an expression of words, and, or, not, and parentheses"
        raise BadInput([f"-k: {fault}"]) from error

    def matches(name: str) -> bool:
        text = keyword(name).lower()
        return compiled.evaluate(lambda word, /, **_: word.lower() in text)

    return matches
