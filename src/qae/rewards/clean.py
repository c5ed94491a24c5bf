r"""One spelling for answers: delimiters, fonts, spaces and Unicode signs out of the way, meaning untouched."""

import re
from functools import lru_cache

# full width, Arabic, Persian, Devanagari, Bengali, Thai, and the five alphabets of mathematical digits
_ZEROS = (0xFF10, 0x660, 0x6F0, 0x966, 0x9E6, 0xE50, *range(0x1D7CE, 0x1D800, 10))
_SIGNS = {
    **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\u2014\ufe63\uff0d", "-"),
    **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u200e\u200f\u20ac\u00a3\u00a5\u20b9", ""),
    **dict(zip("\uff08\uff09\uff1d\uff1a\uff05\uff0e\uff0b\uff0c\uff1b\u3001", "()=:%.+,;,", strict=True)),
    **dict(zip("\u201c\u201d\u2018\u2019", "\"\"''", strict=True)),
    **{chr(zero + digit): str(digit) for zero in _ZEROS for digit in range(10)},
    "\u00d7": r"\times ", "\u00f7": "/", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u2217": "*", "\u2044": "/",
    "\u03c0": r"\pi ", "\u221e": r"\infty ", "\u2205": r"\emptyset ", "\u222a": r"\cup ", "\u2229": r"\cap ",
    "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u00b1": r"\pm ", "\u2208": r"\in ",
    "\u221a": r"\sqrt ", "\u2248": r"\approx ", "\u03b8": r"\theta ", "\u03b1": r"\alpha ", "\u03b2": r"\beta ",
    "\u03bb": r"\lambda ", "\u00b0": r"^\circ ", "\u00b2": "^2", "\u00b3": "^3", "\u207f": "^n",
    "\u00bd": " 1/2", "\u2153": " 1/3", "\u2154": " 2/3", "\u00bc": " 1/4", "\u00be": " 3/4",
}  # fmt: skip
_TRANSLATION = str.maketrans(_SIGNS)

_BARE_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_FONTS = re.compile(
    r"\\(?:mathrm|mathbf|mathit|mathsf|mathtt|mathnormal|textbf|textit|textrm|textsf|texttt|textnormal|textup|mbox|"
    r"hbox|operatorname\*?|boldsymbol|bm|emph|underline)\s*\{"
)
_OLD_FONTS = re.compile(
    r"\\(?:rm|bf|it|displaystyle|textstyle|scriptstyle|limits|nolimits|phantom\{[^{}]*\})(?![a-zA-Z])"
)
_SIZES = re.compile(r"\\(?:left|right|middle|[bB]ig{1,2}[lrm]?)(?![a-zA-Z])\s*\.?(?=[^a-zA-Z0-9.]|$)")
_SPACES = re.compile(r"\\[,;:!> ]|~|\\q?quad(?![a-zA-Z])|\\(?:thin|med|thick)space(?![a-zA-Z])|\\hspace\*?\{[^{}]*\}")
_SQUEEZE = re.compile(r"\s+")
_FRACTIONS = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_SHORT_FRACTION = re.compile(
    r"\\frac\s*(?:\{([^{}]*)\}|(\d|[a-zA-Z]|\\[a-zA-Z]+\s))\s*(?:\{([^{}]*)\}|(\d|[a-zA-Z]|\\[a-zA-Z]+))"
)
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d|[a-zA-Z])")
_ROOT_IN_PARENTHESES = re.compile(r"\\?sqrt\s*\(([^()]*)\)")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z])")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\,|\\!,|,\\!)(?=\d{3}(?!\d))")
_SYNONYMS = (
    (re.compile(r"\\leqs?lant(?![a-zA-Z])|\\leq(?![a-zA-Z])|<="), r"\\le "),
    (re.compile(r"\\geqs?lant(?![a-zA-Z])|\\geq(?![a-zA-Z])|>="), r"\\ge "),
    (re.compile(r"\\neq(?![a-zA-Z])|!="), r"\\ne "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\l[bB]race(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\r[bB]race(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\langle(?![a-zA-Z])"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])"), ")"),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\\degree(?![a-zA-Z])|\\deg(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"\^\s*\{\s*\\(?:circ|prime)\s*\}"), r"^\\circ "),
    (re.compile(r"\\(?:div)(?![a-zA-Z])"), "/"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<![\\a-zA-Z])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"(?<![\\a-zA-Z])(?:infinity|infty|inf|oo)(?![a-zA-Z])"), r"\\infty "),
)
_DELIMITERS = (
    ("$$", "$$"),
    ("$", "$"),
    (r"\(", r"\)"),
    (r"\[", r"\]"),
    ("**", "**"),
    ("__", "__"),
    ("`", "`"),
    ('"', '"'),
    ("'", "'"),
)


@lru_cache(maxsize=2_048)
def clean(answer: str) -> str:
    r"""An answer in one spelling: no delimiters, fonts, sizes or fine spaces; short forms written out.

    Example:
        >>> clean(r"$\displaystyle \dfrac12$."), clean("**−3**"), clean(r"\left( 1{,}000 , 2 \right)")
        ('\\frac{1}{2}', '-3', '(1000 , 2)')
    """
    if _BARE_NUMBER.fullmatch(answer):
        return answer
    text = answer.translate(_TRANSLATION)
    if "\\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = _THOUSANDS.sub("", text)
    text = _SPACES.sub(" ", text)
    text = _OLD_FONTS.sub(" ", text)
    text = _FONTS.sub(r"\\text{", text)
    text = _FRACTIONS.sub(r"\\frac", text)
    text = _SIZES.sub("", text)
    text = _unwrap(text)
    text = text.replace(r"\$", "").replace("$", "")
    text = text.replace(r"\(", "").replace(r"\)", "")
    for pattern, spelling in _SYNONYMS:
        text = pattern.sub(spelling, text)
    text = _SHORT_FRACTION.sub(lambda m: rf"\frac{{{m[1] or m[2] or ''}}}{{{m[3] or m[4] or ''}}}", text)
    text = _ROOT_IN_PARENTHESES.sub(r"\\sqrt{\1}", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    text = re.sub(r"(?<=[(\[])\s+|\s+(?=[)\]])", "", _SQUEEZE.sub(" ", text))
    return _unwrap(text)


def _unwrap(text: str) -> str:
    r"""Outer delimiters, boxes, quotes and the full stop at the end go, as often as they are found."""
    for _ in range(8):
        before = text
        text = text.strip().rstrip(".,;:").rstrip() if not text.endswith("...") else text.strip()
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : len(text) - len(closing)]
            if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing):
                if opening not in inner and not (text.endswith("\\" + closing)):
                    text = inner
        text = _strip_braces(text)
        if text == before:
            break
    return text


def _strip_braces(text: str) -> str:
    box = _BOX.match(text)
    start = box.end() - 1 if box else 0
    if text[start : start + 1] == "{" and matching_brace(text, start) == len(text) - 1:
        return text[start + 1 : -1]
    return text


def matching_brace(text: str, start: int) -> int:
    r"""Position of the brace that closes the one at `start`, or -1. Escaped braces do not count.

    Example:
        >>> matching_brace(r"{a{b}\}c}d", 0)
        8
    """
    depth, position = 0, start
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return -1
