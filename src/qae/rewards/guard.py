r"""What is turned away before any computer algebra sees it: text whose evaluation could take for ever."""

import re

MAX_ANSWER_CHARS = 1_000
MAX_DEPTH = 20
MAX_DIGITS = 400
MAX_EXPONENT = 10_000
MAX_ARGUMENT = 1_000

_BRACKETS = re.compile(r"\\.|[(\[{}\])]", re.DOTALL)
_DIGITS = re.compile(r"\d+")
_LABOUR = re.compile(
    r"\\(?:i{0,3}int|oint|sum|prod|coprod|lim|limsup|liminf|partial|nabla|det|perm|bigcup|bigcap)(?![a-zA-Z])|\\frac\s?\{\s?d\s?\}"
)
_CHOOSE = re.compile(r"\\(?:[dt]?binom|choose|Gamma|gamma|zeta|operatorname)(?![a-zA-Z])|!")
_EXPONENT = re.compile(r"\^\s*")
_COMMAND = re.compile(r"\\[a-zA-Z]+")


def refusal(text: str, *, allowed: str = "") -> str | None:
    r"""Why a cleaned answer is not evaluated, or None if it may be.

    Args:
        text: the answer.
        allowed: the gold answer: integrals, sums, products, limits are let through if it has the same.

    Returns:
        A word or two for the log, or None.

    Example:
        >>> refusal("9^{9^{9^9}}"), refusal(r"2^{100}-1")
        ('exponent', None)
    """
    if len(text) > MAX_ANSWER_CHARS:
        return "length"
    if any(not (character.isprintable() or character in "\n\t") for character in text):
        return "characters"
    if _depth(text) > MAX_DEPTH:
        return "depth"
    if any(len(digits) > MAX_DIGITS for digits in _DIGITS.findall(text)):
        return "digits"
    if not set(_LABOUR.findall(text)) <= set(_LABOUR.findall(allowed)):
        return "operator"
    if _CHOOSE.search(text) and (text.count("!") > 4 or _largest(text) > MAX_ARGUMENT or ("^" in text and "!" in text)):
        return "argument"
    return "exponent" if _exponents_grow(text) else None


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in ("(", "[", "{", "\\{") else -1 if bracket in (")", "]", "}", "\\}") else 0
        deepest = max(deepest, depth)
    return deepest


def _largest(text: str) -> int:
    return max((int(digits) for digits in _DIGITS.findall(text)), default=0)


def _exponents_grow(text: str) -> bool:
    """Whether an exponent holds a number beyond the limit, or powers of powers that could."""
    total = 0
    for match in _EXPONENT.finditer(text):
        exponent = _exponent_at(text, match.end())
        if _largest(exponent) > MAX_EXPONENT or "!" in exponent:
            return True
        if "^" in exponent:
            total += 1
            letters = re.search(r"[a-zA-Z]", _COMMAND.sub("", exponent))
            if exponent.count("^") > 2 or (not letters and _power_is_large(exponent)):
                return True
        elif re.search(r"\^\s*\{?[^{}]*$", text[: match.start()]) and text[match.start() - 1 : match.start()] == "}":
            total += 1
    return total > 4


def _exponent_at(text: str, start: int) -> str:
    """The exponent that begins at `start`: a braced group, or what a careless writer meant by a^b^c."""
    if text[start : start + 1] != "{":
        bare = re.match(r"[-+]?(?:\d+|\\?[a-zA-Z]+)(?:\^\{?[-+]?[\d^{]*)?", text[start : start + 50])
        return bare[0] if bare else text[start : start + 1]
    depth, position = 0, start
    while position < len(text):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            break
        position += 1
    return text[start + 1 : position]


def _power_is_large(exponent: str) -> bool:
    """Whether a numeric exponent with a power in it may go beyond the limit; anything unclear counts as large."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*\^\s*\{?\s*(\d{1,3})\s*\}?\s*", exponent)
    return match is None or int(match[1]) ** int(match[2]) > MAX_EXPONENT
