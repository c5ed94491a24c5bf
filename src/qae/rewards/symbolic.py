r"""Equality of two formulas by computer algebra. Imported in worker processes only: sympy can hang or eat memory."""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify

from qae.rewards.number import Number, rounds_to

DIGITS = 110
"""Digits to which two constants are evaluated; they are equal if they agree to 100."""

_NORMAL = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_SIDE_BY_SIDE = re.compile(r"[\d.]\s+[\d.]")
_DECIMAL = re.compile(r"\d*\.\d+")
_BARE_EXPONENT = re.compile(r"\^\s*(-?\d+(?:\.\d+)?)(?![\d.])")
_TIMES_PARENTHESIS = re.compile(r"(?:(?<=\d)|(?<=\))|(?<=\\pi))\s*\(")
_BARE_SUBSCRIPT = re.compile(r"_\s*(\w)(?!\w)\s?")
_DEGREES = re.compile(r"(\d+)\s*\^\s?\\circ")
_SET_BUILDER = re.compile(r"\\\{.*(?::|\||\\mid(?![a-zA-Z])).*\\\}")
_RELATIONS = (sympy.Eq, sympy.Ne, sympy.StrictLessThan, sympy.LessThan, sympy.StrictGreaterThan, sympy.GreaterThan)
_POINTS = tuple(tuple(sympy.Float(n, 130) / 1009 for n in row) for row in (
    (347, 811, 1531, 613, 1277, 431, 1123, 941),
    (1409, 2281, 701, 3109, 1873, 557, 2549, 1201),
    (-389, 1361, -733, 2087, 1699, -1489, 827, 2339),
))  # fmt: skip


class Unreadable(ValueError):
    """The text is no formula."""


def same_formula(gold: str, answer: str, gold_number: Number | None, answer_number: Number | None) -> bool:
    r"""Whether two formulas are equal.

    Constants are evaluated to 110 digits, expressions with variables at three points, equations up to a
    factor; what is left (sets, chains of inequalities, unknown functions) goes to math-verify.

    Args:
        gold: cleaned LaTeX.
        answer: cleaned LaTeX.
        gold_number: its value, if it is a plain number.
        answer_number: its value, if it is a plain number.

    Returns:
        True if they are equal.

    Raises:
        Unreadable: if either cannot be parsed.
    """
    expected, given = read_formula(gold), read_formula(answer)
    for decimal, other in ((answer_number, expected), (gold_number, given)):
        if decimal is not None and decimal.places is not None and _is_real_constant(other):
            return _decimal_equals(decimal, other)
    return _same(expected, given)


@lru_cache(maxsize=256)
def read_formula(latex: str) -> Any:
    """The sympy object that a cleaned LaTeX text means; the text must be a formula from end to end."""
    latex = _BARE_SUBSCRIPT.sub(r"_{\1} ", latex)
    if _SIDE_BY_SIDE.search(latex) or _SET_BUILDER.search(latex) or "'" in latex:
        raise Unreadable(latex)
    text = _BARE_EXPONENT.sub(r"^{\1}", latex)
    text = _DEGREES.sub(r"(\\frac{\1\\pi}{180})", text)
    text = _DECIMAL.sub(_as_fraction, text)
    text = _TIMES_PARENTHESIS.sub(r"\\cdot(", text)
    text = normalize_latex(text, _NORMAL)
    try:
        parsed = latex2sympy(
            text, is_real=True, convert_degrees=False, normalization_config=None, conversion_config=_CONVERSION
        )
    except (Exception, RecursionError) as error:
        raise Unreadable(latex) from error
    if not isinstance(parsed, sympy.Basic | sympy.MatrixBase):
        raise Unreadable(latex)
    imaginary = [s for s in parsed.free_symbols if getattr(s, "name", "") == "i"]
    return parsed.subs(dict.fromkeys(imaginary, sympy.I)) if imaginary else parsed


def _as_fraction(match: re.Match[str]) -> str:
    whole, places = match[0].split(".")
    return rf"\frac{{{int(whole + places)}}}{{{10 ** len(places)}}}"


def _is_real_constant(value: Any) -> bool:
    return isinstance(value, sympy.Expr) and not value.free_symbols


def _decimal_equals(decimal: Number, constant: Any) -> bool:
    exact = constant.doit()
    if exact.is_Rational:
        fraction = Fraction(int(exact.p), int(exact.q))
        return fraction == decimal.value or rounds_to(decimal, fraction)
    shown = exact.evalf(DIGITS)
    if not (shown.is_Float or shown.is_Rational) or not shown.is_finite:
        return False
    return rounds_to(decimal, Fraction(str(shown)))


def _same(gold: Any, answer: Any) -> bool:
    if isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase):
        return gold.shape == answer.shape and all(map(_same, gold.flat(), answer.flat()))
    if isinstance(gold, _RELATIONS) and isinstance(answer, _RELATIONS):
        return _same_relation(gold, answer)
    if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
        decided = _same_expression(gold, answer)
        if decided is not None:
            return decided
    return bool(verify(gold, answer, timeout_seconds=None, strict=True, allow_set_relation_comp=True))


def _same_expression(gold: Any, answer: Any) -> bool | None:
    if gold.atoms(sympy.core.function.AppliedUndef) | answer.atoms(sympy.core.function.AppliedUndef):
        return None
    names = sorted({s.name for s in gold.free_symbols | answer.free_symbols})
    if not names:
        return _same_constant(gold, answer)
    if len(names) > len(_POINTS[0]):
        return None
    compared = 0
    symbols = gold.free_symbols | answer.free_symbols
    for point in _POINTS:
        where = {symbol: point[names.index(symbol.name)] for symbol in symbols}
        first, second = gold.evalf(DIGITS, subs=where), answer.evalf(DIGITS, subs=where)
        verdict = _agree(first, second)
        if verdict is False:
            return False
        compared += verdict is True
    return True if compared else None


def _same_constant(gold: Any, answer: Any) -> bool | None:
    """Equality of two constants, exact for rationals; None where one has no value."""
    gold, answer = gold.doit(), answer.doit()
    if gold.is_Rational and answer.is_Rational:
        return bool(gold == answer)
    if gold.is_infinite or answer.is_infinite:
        return bool(gold == answer)
    first, second = gold.evalf(DIGITS), answer.evalf(DIGITS)
    if first.is_number and second.is_number and (first == 0) != (second == 0):
        return bool((gold - answer).equals(0))
    return _agree(first, second)


def _agree(first: Any, second: Any) -> bool | None:
    """Whether two evaluated numbers agree to all but the last ten digits; None where one is undefined."""
    if not (first.is_number and second.is_number) or any(v.has(sympy.nan, sympy.zoo) for v in (first, second)):
        return None
    scale = max(abs(first), abs(second))
    return bool(scale == 0 or abs(first - second) <= scale * sympy.Float(10) ** (10 - DIGITS))


def _same_relation(gold: Any, answer: Any) -> bool:
    """Equal up to a constant factor, which must be positive for an inequality of the same direction."""
    symmetric = type(gold) in (sympy.Eq, sympy.Ne)
    if type(gold) is type(answer):
        signs = (1, -1) if symmetric else (1,)
    elif type(gold) is type(answer.reversed) and not symmetric:
        signs = (-1,)
    else:
        return False
    expected, given = gold.lhs - gold.rhs, answer.lhs - answer.rhs
    if {s.name for s in expected.free_symbols} != {s.name for s in given.free_symbols}:
        return False
    symbols = sorted(expected.free_symbols, key=str)
    if len(symbols) > len(_SCALES):
        return False
    factors = [
        (expected / given).evalf(DIGITS, subs=dict(zip(symbols, row, strict=False))) for row in (_SCALES, _SCALES[::-1])
    ]
    if not all(factor.is_real and factor.is_finite and factor != 0 for factor in factors):
        return False
    return (1 if factors[0] > 0 else -1) in signs and _agree(*factors) is True


_SCALES = tuple(sympy.Float(n, 130) / 1009 for n in (457, 1321, 883, 1697, 2003, 599, 1459, 1117))
