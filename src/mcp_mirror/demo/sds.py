"""The product name and the ingredients of a safety data sheet, by rules over its text.

The sheet may follow GHS (16 sections, United Nations ST/SG/AC.10/30, Annex 4), Annex II of Regulation (EC) No
1907/2006, OSHA 29 CFR 1910.1200 Appendix D, or an older form: headings are recognized by their words, not by their
numbers. Nothing is guessed: missing information is None, and a CAS number outside the composition section is ignored.
"""

import re
from dataclasses import dataclass, replace
from itertools import pairwise

from mcp_mirror.demo.sds_rows import Ingredient, is_head, is_table_head, read_ingredients
from mcp_mirror.demo.sds_words import COMPOSITION_TITLES, NO_PRODUCT_NAMES, OTHER_TITLES, PRODUCT_LABELS, any_of


@dataclass(frozen=True)
class SafetyDataSheet:
    """The information of a sheet about its product; None or an empty list if it is missing."""

    product_name: str | None
    ingredients: tuple[Ingredient, ...]


_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f", " "),
        **dict.fromkeys("\u00ad\u200b\ufeff\r", ""),
        **{chr(0x2080 + digit): str(digit) for digit in range(10)},
        "\t": "   ",
        "|": "   ",
        "\u2266": "≤",
        "\u2267": "≥",
        "\ufb01": "fi",
        "\ufb02": "fl",
    }
)
_NUMBERING = r"^[\W_]*(?:section\b)?\s*(?:\d{1,2}|[IVX]{1,4}\b)?[\W_]*"
_COMPOSITION = any_of(COMPOSITION_TITLES, before=_NUMBERING)
_OTHER_SECTION = any_of(OTHER_TITLES, before=_NUMBERING)
_BARE_SECTION = re.compile(r"^\W*section\s*\d{1,2}\W*$", re.IGNORECASE)
_LONGEST_HEADING = 110

_LABELS = tuple(
    any_of(
        (label,),
        before=r"^\W*(?:\d\.\d\.?\s*)?",
        after=r"(?:\s*\([^)]*\))?\s*(?P<sign>[:.]|\s-\s|(?=\s)|$)\s*(?P<value>.*)$",
    )
    for label in PRODUCT_LABELS
)
_NO_NAME = any_of(NO_PRODUCT_NAMES, before="^")
_LONGEST_NAME = 120
_LONGEST_LINE = 1000
"""Characters of a line that are read: lines of sheets are shorter, and patterns may take quadratic time."""


def split_lines(content: str) -> list[str]:
    """Return the lines with one kind of dash and space; a colon at the start of a line moves to the line above."""
    text = content.translate(_CHARACTERS).replace("</=", "≤").replace(">/=", "≥")
    lines: list[str] = []
    for line in filter(None, (line.strip()[:_LONGEST_LINE].strip() for line in text.split("\n"))):
        if lines and line.startswith(":"):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return lines


def is_heading(line: str, titles: re.Pattern[str]) -> bool:
    """Whether a line is a section heading with one of the titles: short, and neither a sentence nor a table field."""
    sentence = line.endswith((".", ";")) and not line.endswith("No.")
    return len(line) <= _LONGEST_HEADING and titles.match(line) is not None and not sentence


def split_composition(lines: list[str]) -> tuple[list[str], list[str]]:
    """Separate lines outside and inside of a composition section or a table headed by CAS numbers and amounts.

    A table of contents names the section too; its lines are outside.
    """
    inside = False
    others: list[str] = []
    composition: list[str] = []
    for line in lines:
        if is_heading(line, _COMPOSITION) or is_table_head(line):
            inside = True
        elif is_heading(line, _OTHER_SECTION) or _BARE_SECTION.match(line):
            inside = False
        else:
            (composition if inside else others).append(line)
    return others, composition


def product_name(lines: list[str]) -> str | None:
    """Return the value of the best label of the product's name, on the same line or on the next."""
    for label in _LABELS:
        for line, following in pairwise([*lines, ""]):
            if (found := label.match(line)) and (name := _accept_name(found["value"], found["sign"], following)):
                return name
    return None


def _accept_name(value: str, sign: str, following: str) -> str | None:
    """Return the value behind a label, or the next line if the label has a line of its own."""
    value = value.strip(" :-")
    candidate = value or following.strip(" :-")
    if sign == "" and value and value[0].islower():
        return None
    if not candidate or _NO_NAME.match(candidate) or is_head(candidate) or len(candidate) > _LONGEST_NAME:
        return None
    return " ".join(candidate.split())


def extract(content: str) -> SafetyDataSheet:
    """Return the product name and the ingredients that the text of a safety data sheet states.

    The only ingredient of a pure substance gets the product's name if the composition section does not name it.
    """
    others, composition = split_composition(split_lines(content))
    name = product_name(others) or product_name(composition)
    ingredients = read_ingredients(line for line in composition if line != name)
    if len(ingredients) == 1 and ingredients[0].name is None:
        ingredients = [replace(ingredients[0], name=name)]
    return SafetyDataSheet(product_name=name, ingredients=tuple(ingredients))
