"""The product name and the ingredients of a safety data sheet, by rules over its text.

The sheet may follow GHS (16 sections, United Nations ST/SG/AC.10/30, Annex 4), Annex II of Regulation (EC) No
1907/2006, OSHA 29 CFR 1910.1200 Appendix D, or an older form: headings are recognized by their words, not by their
numbers. Nothing is guessed: missing information is None, and a CAS number outside the composition section is ignored.

The text of a composition table may have one row per line, one cell per line, blocks of labelled values, or one column
after another. One rule covers the first three: fields fill an ingredient, and a field that the ingredient already has
begins the next one. Columns one after another have equal lengths; they are first turned into rows.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise

from mcp_mirror.demo.sds_fields import (
    COMPOSITION_TITLES,
    DROPPED_LINES,
    HEADER_WORDS,
    NAME_LABELS,
    NO_PRODUCT_NAMES,
    OTHER_TITLES,
    PRODUCT_LABELS,
    SENTENCE_WORDS,
    VALUE_LABELS,
    Field,
    Kind,
    any_of,
    read_fields,
)


@dataclass(frozen=True)
class Ingredient:
    """One ingredient; missing fields are None."""

    name: str | None
    cas_rn: str | None
    concentration: str | None
    formula: str | None


Group = dict[str, Field]
"""The fields of one ingredient by slot: name, cas, concentration, formula."""

_SLOTS: dict[Kind, str] = {
    "name": "name",
    "cas": "cas",
    "bad_cas": "cas",
    "concentration": "concentration",
    "formula": "formula",
}
_NAME_LABEL = any_of(NAME_LABELS, before="^", after=r"\s*")
_VALUE_LABEL = any_of(VALUE_LABELS, before="^", after=r"\s*")
_OTHER_LABEL = re.compile(r"^(?!cas\b|ec\b|einecs|index|reg|reach)[a-z][a-z /.()#&-]{1,40}?\s*:(?!\d)", re.IGNORECASE)
_DROPPED = any_of(DROPPED_LINES, before="^")
_AMOUNT_HEAD = re.compile(r"^(?=.*\bcas\b)(?=.*(?:%|\bwt|\bweight|\bconc|\bcontent|\bpercent))", re.IGNORECASE)
_SENTENCE = any_of(SENTENCE_WORDS, before=r"\b", after=r"\b")
_SHORTEST_SENTENCE = 4
"""Words of a line. A line with so many words, one of them a sentence word, is a sentence: names have no such words."""

_PROSE = re.compile(r"\.$|\w{3,}\. [A-Z]|(?:\S+ +){7}")
"""Prose below a table, which does not continue a name: it has a full stop or more than seven words."""

_LABELLED = re.compile(
    r"[;,]\s+(?=(?:cas|ec|formula|conc|content|amount|index|reach|classification)[\w .#-]{0,20}:)", re.IGNORECASE
)
_OPEN_ENDS = {",": ", ", "-": "-"}
"""Last characters of a line with a name that continues on the next line, and the text that joins both parts."""

_LARGEST_BROKEN_ROW = 4
"""Fields of a row and of the next line: name, number and amount, and the rest of the name."""

_SMALLEST_TABLE = 2
"""Least number of rows and of columns of a table."""

_CONTINUES = re.compile(r"^(?:[a-z(\[]|\d+(?:[,-]\d+)*-[a-z])")


def is_head(line: str) -> bool:
    """Whether a line has only words of table heads."""
    words = (
        re.sub(r"(?<=\w)[-.]+(?=\w)", "-", word).split("-")
        for word in re.findall(r"[^\s:;,.()\[\]*/]+(?:/[^\s:;,.()\[\]*/]+)*", line.lower())
    )
    return all({part, "".join(parts)} & HEADER_WORDS for parts in words for part in parts)


def is_noise(line: str) -> bool:
    """Whether a line does not belong to an ingredient: a page footer, a table head, a remark, a sentence."""
    if is_head(line) or _DROPPED.match(line):
        return True
    return (
        len(line.split()) >= _SHORTEST_SENTENCE
        and bool(_SENTENCE.search(line))
        and not re.search(r"\d-\d\d-\d\b", line)
    )


def unlabel(line: str) -> str:
    """Strip the label of a name, CAS number, concentration or formula; return an empty text for any other label."""
    for label in (_NAME_LABEL, _VALUE_LABEL):
        if found := label.match(line):
            return line[found.end() :]
    return "" if _OTHER_LABEL.match(line) else line


def lay_out(lines: Iterable[str]) -> list[str]:
    """Put each labelled value on its own line, and join "..., <2%" with "aromatics" on the next line to one name."""
    joined: list[str] = []
    for line in chain.from_iterable(_LABELLED.split(line) for line in lines):
        if joined and joined[-1].endswith("%") and re.match(r"(?:aromatics|n-hexane)\b", line):
            joined[-1] += f" {line}"
        else:
            joined.append(line)
    return joined


def read_lines(lines: Iterable[str]) -> list[list[Field]]:
    """Return the fields of each line that has any; a name on several lines becomes one name on the first."""
    rows: list[list[Field]] = []
    end = ""
    for raw in lay_out(lines):
        line = raw.strip().lstrip("•·*- ").strip()
        fields = [] if is_noise(line) else read_fields(unlabel(line))
        if not fields:
            continue
        if rows and continues_name(rows[-1], fields, end):
            _join_name(rows[-1], fields, end)
        else:
            rows.append(fields)
        end = line[-1]
    return rows


def continues_name(above: list[Field], fields: list[Field], end: str) -> bool:
    """Whether a line continues the name above: the line above ends open, or this line starts in lower case.

    A whole row does not continue a whole row, and prose continues nothing.
    """
    if fields[0].kind != "name" or not any(field.kind == "name" for field in above):
        return False
    if (len(above) > 1 and len(fields) > 1) or _PROSE.search(fields[0].text):
        return False
    if above[-1].kind == "name" and end in _OPEN_ENDS:
        return True
    return bool(_CONTINUES.match(fields[0].text)) and len(above) + len(fields) <= _LARGEST_BROKEN_ROW


def _join_name(above: list[Field], fields: list[Field], end: str) -> None:
    index = max(i for i, field in enumerate(above) if field.kind == "name")
    glue = _OPEN_ENDS.get(end, " ") if index == len(above) - 1 else " "
    above[index] = Field("name", f"{above[index].text}{glue}{fields[0].text}")
    above.extend(fields[1:])


def turn_columns(rows: list[list[Field]]) -> list[list[Field]]:
    """Return the rows of a table that was read column by column, with one cell per line and columns of equal length."""
    if any(len(row) > 1 for row in rows):
        return rows
    cells = [row[0] for row in rows]
    columns = [list(run) for _, run in groupby(cells, key=lambda cell: _SLOTS[cell.kind])]
    slots = {_SLOTS[cell.kind] for cell in cells}
    heights = {len(column) for column in columns}
    if len(heights) != 1 or len(slots) < len(columns) or min(len(columns), *heights) < _SMALLEST_TABLE:
        return rows
    return [list(row) for row in zip(*columns, strict=True)]


def fill_groups(rows: list[list[Field]]) -> list[Group]:
    """Fill ingredients one after another; a line with a field that the ingredient already has begins a new one."""
    groups: list[Group] = [{}]
    for row in rows:
        if any(_clashes(groups[-1], field) for field in row):
            groups.append({})
        for field in row:
            if _clashes(groups[-1], field):
                groups.append({})
            groups[-1].setdefault(_SLOTS[field.kind], field)
    return groups


def cut_groups(rows: list[list[Field]]) -> list[Group]:
    """Begin an ingredient at each line with a CAS number; leave out fields that it already has."""
    groups: list[Group] = []
    for row in rows:
        if any(_SLOTS[field.kind] == "cas" for field in row):
            groups.append({})
        for field in row if groups else ():
            groups[-1].setdefault(_SLOTS[field.kind], field)
    return groups


def group_fields(rows: list[list[Field]]) -> list[Group]:
    """Return the fields of each ingredient by the grouping that completes more ingredients; of equals, by filling.

    If rows begin with the CAS number, one stray name before them shifts all names by one; cutting completes one more.
    """

    def count_complete(groups: list[Group]) -> int:
        return sum({"name", "cas", "concentration"} <= group.keys() for group in groups)

    return max(fill_groups(rows), cut_groups(rows), key=count_complete)


def _clashes(group: Group, field: Field) -> bool:
    taken = group.get(_SLOTS[field.kind])
    return taken is not None and taken.text != field.text


def to_ingredient(group: Group) -> Ingredient | None:
    """Return the ingredient of a group; None if it has neither a CAS number nor both a name and a concentration."""
    cas = group.get("cas")
    cas_rn = cas.text if cas and cas.kind == "cas" else None
    if not (cas_rn or {"name", "concentration"} <= group.keys()):
        return None
    texts = {slot: field.text for slot, field in group.items()}
    return Ingredient(texts.get("name"), cas_rn, texts.get("concentration"), texts.get("formula"))


def merge_duplicates(ingredients: Iterable[Ingredient]) -> list[Ingredient]:
    """Merge ingredients with the same CAS number, or without one the same name; later ones fill missing fields."""
    merged: dict[str, Ingredient] = {}
    for later in ingredients:
        key = later.cas_rn or (later.name or "").casefold()
        first = merged.get(key, later)
        merged[key] = Ingredient(
            name=first.name or later.name,
            cas_rn=first.cas_rn,
            concentration=first.concentration or later.concentration,
            formula=first.formula or later.formula,
        )
    return list(merged.values())


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
        # The head of a table names CAS numbers and amounts, and has only such words.
        if is_heading(line, _COMPOSITION) or (_AMOUNT_HEAD.match(line) and is_head(line)):
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
    groups = group_fields(turn_columns(read_lines(line for line in composition if line != name)))
    ingredients = merge_duplicates(filter(None, map(to_ingredient, groups)))
    if len(ingredients) == 1 and ingredients[0].name is None:
        ingredients = [replace(ingredients[0], name=name)]
    return SafetyDataSheet(product_name=name, ingredients=tuple(ingredients))
