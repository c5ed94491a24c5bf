r"""Exact numbers as they are written in answers: integers, decimals, fractions, mixed numbers, powers of ten."""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

EXACT_DIGITS = 6
"""A rounded decimal stands for a fraction, root or pi only if it shows this many significant digits."""

_LONGEST = 400
_LARGEST_POWER = 1000
_PLAIN = r"(?:\d+(?:\.\d*)?|\.\d+)"
_SIGNED = rf"[+-]?\s?{_PLAIN}"
_THOUSANDS = re.compile(r"([+-]?\s?)(\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+))(\.\d+)?")
_DECIMAL = re.compile(rf"([+-]?)\s?({_PLAIN})")
_FRACTION = re.compile(
    rf"([+-]?)\s?(?:({_SIGNED})\s?/\s?({_SIGNED})|\\frac\s?\{{\s?({_SIGNED})\s?\}}\s?\{{\s?({_SIGNED})\s?\}})"
)
_MIXED = re.compile(r"([+-]?)\s?(\d+)(?:\s?\\frac\s?\{\s?(\d+)\s?\}\s?\{\s?(\d+)\s?\}|\s(\d+)\s?/\s?(\d+))")
_POWER = re.compile(
    rf"([+-]?)\s?(?:({_PLAIN})\s?(?:\\times|\\cdot|\*|x)\s?)?10\s?\^\s?(?:\{{\s?([+-]?\d+)\s?\}}|([+-]?\d+))"
)
_EXPONENT = re.compile(rf"([+-]?)\s?({_PLAIN})[eE]([+-]?\d+)")
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s?\{(\d+)\}|\((\d+)\))")
_IN_BASE = re.compile(r"([0-9A-Z]+)\s?_\s?(?:\{\s?(\d{1,2})\s?\}|(\d))")


@dataclass(frozen=True)
class Number:
    """A number with all of its notation that can matter.

    Attributes:
        value: exactly what is written; a percent sign does not change it.
        places: digits after the point if it is written with one, else None.
        digits: significant digits written.
        percent: a percent sign follows.
        unit: known unit that follows, in one spelling; empty for none or an unknown one.
        numeral: digits as written if a base stands below them, else empty.
        name: the variable that it was said to be ("x = 5"), or empty.
    """

    value: Fraction
    places: int | None = None
    digits: int = 0
    percent: bool = False
    unit: str = ""
    numeral: str = ""
    name: str = ""


def read_number(text: str) -> Number | None:
    r"""The number that a cleaned text is, or None if it is none.

    Example:
        >>> read_number("1,234.50").value, read_number("2 2/3").value, read_number(r"-\frac{3}{6}").value
        (Fraction(2469, 2), Fraction(8, 3), Fraction(-1, 2))
    """
    if len(text) > _LONGEST or not text.isascii():
        return None
    for pattern, reader in _READERS:
        if match := pattern.fullmatch(text):
            return reader(match)
    return None


def same_number(gold: Number, answer: Number) -> bool:
    r"""Whether two written numbers agree.

    Equal values agree. A percent sign may be read as a unit or as 1/100, a bare number only as it stands. A
    decimal agrees with a fraction that it cannot write out if it shows six significant digits, rounded or cut
    off.

    Example:
        >>> third = read_number("1/3")
        >>> same_number(third, read_number("0.333333")), same_number(third, read_number("0.3333"))
        (True, False)
    """
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if bool(gold.numeral) != bool(answer.numeral):
        numeral, other = (gold.numeral, answer) if gold.numeral else (answer.numeral, gold)
        if other.places is None and str(other.value) == numeral.lstrip("0"):
            return True
    readings = [(gold, answer)]
    if gold.percent and not answer.percent:
        readings.append((replace(gold, value=gold.value / 100), answer))
    if answer.percent and not gold.percent:
        readings.append((gold, replace(answer, value=answer.value / 100)))
    return any(g.value == a.value or _rounded(g, a.value) or _rounded(a, g.value) for g, a in readings)


def _rounded(decimal: Number, exact: Fraction) -> bool:
    """Whether `decimal` is a long enough rounding of a fraction that no decimal writes out."""
    if decimal.places is None or decimal.percent or decimal.digits < EXACT_DIGITS or _terminates(exact):
        return False
    return rounds_to(decimal, exact)


def rounds_to(decimal: Number, exact: Fraction) -> bool:
    """Whether a decimal shows six significant digits and is `exact` rounded, or cut off, to its places."""
    if decimal.places is None or decimal.digits < EXACT_DIGITS or (decimal.value < 0) != (exact < 0):
        return False
    shown, scaled = abs(decimal.value) * 10**decimal.places, abs(exact) * 10**decimal.places
    return shown == scaled.__floor__() or abs(shown - scaled) <= Fraction(1, 2)


def _terminates(value: Fraction) -> bool:
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1


def _sign(text: str) -> int:
    return -1 if text.strip() == "-" else 1


def _decimal(sign: str, plain: str) -> Number:
    whole, point, places = plain.partition(".")
    digits = len((whole + places).lstrip("0"))
    return Number(_sign(sign) * Fraction(plain if plain[-1] != "." else whole), len(places) if point else None, digits)


def _ratio(sign: str, numerator: str, denominator: str) -> Number | None:
    below = Fraction(denominator.replace(" ", "").rstrip("."))
    if below == 0:
        return None
    return Number(_sign(sign) * Fraction(numerator.replace(" ", "").rstrip(".")) / below)


def _read_fraction(match: re.Match[str]) -> Number | None:
    return _ratio(match[1], match[2] or match[4], match[3] or match[5])


def _read_mixed(match: re.Match[str]) -> Number | None:
    part = _ratio("", match[3] or match[5], match[4] or match[6])
    return part and Number(_sign(match[1]) * (int(match[2]) + part.value))


def _read_power(match: re.Match[str]) -> Number | None:
    exponent = int(match[3] or match[4])
    if abs(exponent) > _LARGEST_POWER:
        return None
    mantissa = _decimal(match[1], match[2] or "1")
    return Number(mantissa.value * Fraction(10) ** exponent)


def _read_exponent(match: re.Match[str]) -> Number | None:
    if abs(int(match[3])) > _LARGEST_POWER:
        return None
    return Number(_decimal(match[1], match[2]).value * Fraction(10) ** int(match[3]))


def _read_repeating(match: re.Match[str]) -> Number:
    start, period = match[3], match[4] or match[5]
    tail = Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(start))
    return Number(_sign(match[1]) * (Fraction(f"{match[2] or '0'}.{start or '0'}") + tail))


def _read_in_base(match: re.Match[str]) -> Number | None:
    base = int(match[2] or match[3])
    try:
        return Number(Fraction(int(match[1], base)), numeral=match[1]) if base >= 2 else None
    except ValueError:
        return None


_READERS = (
    (_DECIMAL, lambda m: _decimal(m[1], m[2])),
    (_THOUSANDS, lambda m: _decimal(m[1], re.sub(r"[, ]", "", m[2]) + (m[3] or ""))),
    (_FRACTION, _read_fraction),
    (_MIXED, _read_mixed),
    (_POWER, _read_power),
    (_EXPONENT, _read_exponent),
    (_REPEATING, _read_repeating),
    (_IN_BASE, _read_in_base),
)
