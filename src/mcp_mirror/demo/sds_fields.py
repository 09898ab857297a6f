"""The words of safety data sheets, and the fields of a composition table: CAS number, concentration, formula, noise.

The words are tables of alternatives: section titles, labels, column heads, hazard classes. For a sheet with another
wording, add a line to one of these tables. Each rule for fields reads one line at most; `sds` combines lines.
"""

import re
from typing import Literal, NamedTuple

HEADER_WORDS = frozenset(
    word
    for line in (
        "a and by or of on the to s no nr id rn ec eec m note notes proportion",
        "cas casrn einecs elincs reach reg registration registry regulation rtecs index list unique number numbers",
        "chemical common component components composition material mixture mixtures substance substances ingredient",
        "ingredients name names identifier identity synonym synonyms formula molecular nature based pure type symbol",
        "% # wt wt% vol w/w v/v w/v weight volume amount conc concentration concentrations content contents percent",
        "percentage range class classification clp ghs hazard hazardous dangerous declarable statement statements",
        "remark remarks description information other section subject specific according limit limits factor factors",
        "scl ate abbreviated 1272/2008 no/ec",
    )
    for word in line.split()
)
"""Words of the heads of composition tables: a line of only these words is a head."""

COMPOSITION_TITLES = (
    r"(?:chemical )?composition\b(?! comments)",
    r"information on (?:the )?(?:hazardous )?(?:ingredients|components)",
    r"(?:hazardous|dangerous) (?:components|ingredients)\b",
    r"ingredients?\s*$",
)
OTHER_TITLES = (
    r"hazards?\b(?:\(s\))?\s*(?:identification|information|summary|$)",
    r"first[\s-]*aid",
    r"fire[\s-]*(?:and explosion|fighting|$)",
    r"accidental release",
    r"(?:handling|storage|transport)\b",
    r"exposure (?:controls?|limits)",
    r"personal protect",
    r"physical\b.*(?:chemical|properties|data)",
    r"(?:stability|reactivity|toxicolog|ecolog|disposal|regulatory)",
    r"other information",
    r"emergency (?:overview|and first)",
)

PRODUCT_LABELS = (
    r"(?:ghs )?product (?:/ ?trade )?name",
    r"trade ?name",
    r"commercial (?:product )?name",
    r"name of (?:the )?(?:product|mixture|preparation)",
    r"(?:ghs )?product (?:identifiers?|identification|id)\b(?: used on the label)?",
    r"identity \(as used on[^)]*\)",
    r"product(?= ?:)",
    r"identification of (?:the )?(?:substance|product|mixture|preparation)(?! ?/)",
    r"(?:name of (?:the )?substance|(?:material|substance|chemical|mixture) name)",
)
"""Labels of the product's name, the most reliable first."""

NO_PRODUCT_NAMES = (
    r"\d{1,2}\.\d",
    r"\d{1,2}\.? +[A-Z][a-z]",
    r"[\W_]*$",
    r"[A-Za-z /()-]{2,40}:",
    r"(?:section|product|code|number|type|form|use|description|page|company|cas)\b",
    r"(?:trade ?name|chemical name|other means|synonyms?|used on|recommended use|relevant identified|identif)",
    r"(?:manufacturer|supplier|and (?:company|supplier|use)|/)",
    r"of the (?:substance|mixture|preparation|product)",
    r"(?:mixture|substance|not available|not applicable|n/?a|none)$",
)
"""Texts after a label of the product's name that are not the name: the next label, a heading, "mixture"."""

NAME_LABELS = (
    r"(?:(?:chemical|substance|ingred(?:ient)?|component|common|material|iupac|inci) ?)?names?(?: ?\d{1,2})?\s*[:=]",
    r"(?:(?:hazardous )?(?:ingredient|components?)|substance|chemical)(?: ?(?:no\.? ?)?\d{1,2})?\s*[:=]",
    r"name of (?:the )?(?:substance|ingredient|component)\s*[:=]?\s",
)
"""Labels of an ingredient's name."""

_QUALIFIER = r"\s*(?:\([^)]*\)|\[[^\]]*\])?\s*[:=]"
VALUE_LABELS = (
    rf"(?:typical )?conc(?:entration|\.)?(?: range)?{_QUALIFIER}",
    rf"(?:contents?|amount|weight|wt\.?|percent(?:age)?){_QUALIFIER}",
    rf"fraction by (?:wt|weight|vol(?:ume)?){_QUALIFIER}",
    rf"% ?(?:(?:by )?(?:wt|weight|w/w|volume)\.?)?{_QUALIFIER}",
    rf"cas[\s-]*(?:rn|no\.?|nr\.?|number|registry number)?{_QUALIFIER}",
    rf"formula{_QUALIFIER}",
    r"(?:chemical|molecular|empirical) formula\s*[:=]?\s",
)
"""Labels of an ingredient's CAS number, concentration or formula."""

DROPPED_LINES = (
    r"page\b",
    r"\d{1,2}\s*(?:/|of)\s*\d{1,2}$",
    r"(?:revision|version|print|issue|sds\b|\*)",
    r"(?:synonyms?|remarks?|notes?|concentration limits?)\b",
    r"(?:molecular (?:weight|mass)|mol\.? ?w|molar|chemical family|substance/mixture|impurities)",
    r"(?:specific conc|additional info|composition comments|trade secret|hazard statements?|classification)",
    r"(?:occupational|osha|acgih)",
    r"[-=_|\s]*$",
    r"\d\.\d\.?\s+[A-Z]",
    r".*\bC\s*[<>≤≥]",
    r".*\)\.$",
)
"""Beginnings of lines of a composition section without an ingredient: footers, remarks, concentration limits."""

SENTENCE_WORDS = (
    r"is|are|was|been|contains?|according|see|refer|listed|following|this|these|there|none|withheld|displayed|section",
    r"wording|mentioned|hereof|exact|required|may|must|should|keep|remove|wash|present and",
)

HAZARD_CLASSES = (
    r"Flam(?:mable|\.)?\s*(?:Liq|Sol|Gas|Aer)(?:uid|id|osol|\.)?s?\.?",
    r"Acute\s+Tox(?:icity|\.)?(?:\s*[-,]?\s*(?:oral|dermal|inhal(?:ation|\.)?))?",
    r"Skin\s+(?:Corr|Irrit|Sens)\w*\.?(?:\s?/\s?irrit\w*\.?)?",
    r"(?:Serious\s+)?Eye\s+(?:Dam|Irrit)\w*\.?(?:\s?/\s?(?:eye\s)?irrit\w*\.?)?",
    r"STOT\s*-?\s*(?:SE|RE)",
    r"Asp(?:iration)?\.?\s+(?:Tox|Haz)\w*\.?",
    r"Aquatic\s+(?:Acute|Chro\w*)",
    r"Met\.?\s+Corr\w*\.?",
    r"Ox\.?\s+(?:Liq|Sol|Gas)\.?",
    r"Repr?(?:\.|\s+Tox\.?|oductive toxicity)",
    r"Muta\b\.?",
    r"Carc(?:\.|inogenicity|\b)",
    r"Resp\.?\s+Sens\w*\.?",
    r"Org\.?\s+Perox\.?",
    r"Pyr\.?\s+(?:Liq|Sol)\.?",
    r"(?:Self-heat|Water-react|Press\.?\s+Gas|Expl|Lact)\.",
)
"""Hazard classes of GHS as tables abbreviate them (Regulation (EC) No 1272/2008, Annex VI, Table 1.1)."""

PLAIN_FORMULAE = frozenset("HF HI HCN KOH KF KI KCN HCOOH CO NO H2 N2 O2 O3 F2 I2 Cl2 Br2 S8 P4".split())  # noqa: SIM905 - a table of words reads as words
"""Formulae that the rules for formulae would take for a word: only capitals, or one element."""

ELEMENTS = (
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb",
    "Mo Ag Cd In Sn Sb Te I Xe Cs Ba La Ce W Pt Au Hg Tl Pb Bi U",
)


def any_of(alternatives: tuple[str, ...], before: str = "", after: str = "") -> re.Pattern[str]:
    """Compile the alternatives to one pattern, in any case; a space in them matches any run of spaces."""
    joined = "|".join(alternatives).replace(" ", r"\s+").replace(r"\s+?", r"\s*")
    return re.compile(rf"{before}(?:{joined}){after}", re.IGNORECASE)


Kind = Literal["name", "cas", "bad_cas", "concentration", "formula"]


class Field(NamedTuple):
    """One recognized piece of a line."""

    kind: Kind
    text: str


CAS_SHAPE = re.compile(r"(?<![\w-])\d{2,7}-\d{2}-\d(?![\w-])")

NUMBER = r"\d{1,3}(?:[.,]\d+)?"
_BOUND = r"(?:[<>]=|=[<>]|[<>≤≥~]|max\.?|min\.?|up to|less than|more than|at least|ca\.?|approx\.?|about)"
_BASIS = r"(?:\(?(?:w/w|w/v|v/v|m/m|by weight|by wt\.?|by volume|by vol\.?|wt\.?|weight|vol\.?)\)?(?!\w))"
_UNIT = rf"(?:(?:wt\.?|vol\.?)?\s?%\s*{_BASIS}?)"
_DASH = r"\s*(?:-|to|and)\s*"
_VALUE = rf"(?:(?:{_BOUND}\s*)?{NUMBER}|{_BOUND}\s*[.,]\d+)"
CONCENTRATION = re.compile(
    rf"(?<![\w.,/-])(?:"
    rf"{_VALUE}\s*{_UNIT}?{_DASH}{_VALUE}\s*{_UNIT}"
    rf"|{_VALUE}\s*%{_DASH}{_VALUE}(?![\w-])"
    rf"|{_VALUE}{_DASH}{_VALUE}(?=\s|\*|$)"
    rf"|{_VALUE}\s*{_UNIT}"
    rf"|(?:[<>]=|=[<>]|[<>≤≥~]|max\.?|min\.?)\s*(?:{NUMBER}|[.,]\d+)(?=\s|\*|$)"
    rf"|(?:balance|remainder)\b|remaining(?=\s*(?:%|$))"
    rf"|trace[sd]?(?=\s|$)"
    rf"|{NUMBER}(?=\s*\*?$)"
    rf")\*{{0,3}}",
    re.IGNORECASE,
)

_SYMBOLS = sorted(" ".join(ELEMENTS).split(), key=len, reverse=True)
_ATOM = rf"(?:{'|'.join(_SYMBOLS)})\d{{0,3}}"
_FORMULA = re.compile(rf"(?:{_ATOM}|\((?:{_ATOM})+\)\d{{0,3}}|[·*.]\s?[\d½¼¾]{{0,2}}(?=H2O))+")
_CODE = re.compile(r"[HPR]\d{3}")

_NUMBER_WORD = r"(?:no\b\.?|nr\b\.?|number\b|#)"
_REGISTER = r"\b(?:EC|EEC|EINECS|ELINCS|EG|Index|REACH|Registration|Reg|RTECS)(?:\s+Reg(?:istration|\.)?)?"
_NOISE = any_of(
    (
        rf"(?:{'|'.join(HAZARD_CLASSES)})\s*(?:\(?\s*(?:Cat(?:egory|\.)?\s*)?[1-5][A-D]?\b\)?)?(?:\s*\([a-z][a-z\s,]*\))?",
        r"\b(?:EU)?H\d{3}(?:[A-Z]{1,2}\b)?",
        r"\bR\d{2}(?:/\d{2})+\b",
        r"\bGHS0\d\b",
        r"\b(?:Dgr|Wng)\b",
        r"\bCat(?:egory|\.)\s*\d[A-D]?\b",
        r"(?<![\w-])\d{3}-\d{3}-\d{2}-[\dX](?![\w-])",  # index number of Annex VI
        r"(?<![\w-])\d{3}-\d{3}-\d(?![\w-])",  # EC number
        r"(?<![\w-])0\d-\d{10}-\d{2}(?:-[\dX]{4})?(?![\w-])",  # REACH registration number
        rf"{_REGISTER}[\s.-]*(?:{_NUMBER_WORD}\s*[:#]?|[:#])",
        rf"\(?\b(?:CAS|C\.A\.S\.)(?!\w)[\s.-]*(?:RN\b|registry\s+number\b|{_NUMBER_WORD})?\s*[:#]?",
        r"\b\d+(?:[.,]\d+)?\s*(?:ppm|ppb|mg/m3|mg/m³|mppcf|f/cc)\b",
        r"\((?:GC|HPLC|LC|T|GC/T|ICP|dry\s+basis)\)",  # method of an assay
        r"\bM(?:-factor)?\s*=\s*\d+",
        r"\((?:SARA\s+\w+|\*+|\d)\)|\[\d\]",  # marks of footnotes and lists
    )
)
_NO_VALUE = re.compile(
    r"(?<![^\s])(?:not (?:available|applicable|assigned|listed)|unknown|n/?a|none)(?![^\s])", re.IGNORECASE
)
_SECRET = re.compile(
    r"(?<![^\s])(?:trade secret|confidential|withheld|proprietary(?=\s{2}|\s*[\d<>≤≥]|\s*$))(?![^\s])", re.IGNORECASE
)
_COLUMN_GAP = re.compile(r"\s{3,}")
_NUMBER_BEFORE_CAS = re.compile(rf"(?<=\s){NUMBER}(?=\s+{CAS_SHAPE.pattern})")
_OTHER_UNIT = re.compile(r"\s*(?:microns?\b|[µμnm]m\b|ppm\b|mg\b|g/|kg\b|°|deg\b|mol\b|:)", re.IGNORECASE)
_POLYMER_CONTENT = re.compile(r",?\s*[<>≤≥]?\s*\d+\s*%\s*(?=aromatics|n-hexane)", re.IGNORECASE)


def is_cas_number(text: str) -> bool:
    """Verify the check digit: the other digits, counted from the right and weighted 1, 2, 3, ..., sum to it modulo 10.

    Source: "Check Digit Verification of CAS Registry Numbers",
    https://www.cas.org/support/documentation/chemical-substances/checkdig
    """
    digits = [int(character) for character in text if character.isdigit()]
    weighted = sum(weight * digit for weight, digit in enumerate(reversed(digits[:-1]), start=1))
    return CAS_SHAPE.fullmatch(text) is not None and digits[0] != 0 and weighted % 10 == digits[-1]


def is_formula(word: str) -> bool:
    """Whether a word is a chemical formula of at least two atoms, and neither a hazard code nor a capitalised word."""
    if word in PLAIN_FORMULAE:
        return True
    if _CODE.fullmatch(word) or not _FORMULA.fullmatch(word):
        return False
    symbols = set(re.findall(r"[A-Z][a-z]?", word))
    return len(symbols) > 1 and (any(c.isdigit() for c in word) or any(c.islower() for c in word))


def tidy_concentration(text: str) -> str:
    """Normalize a concentration: "10-30%*" becomes "10 - 30 %", "≥2,5-<10" becomes "≥ 2.5 - < 10 %"."""
    text = re.sub(r"(?<!\d)[.,](?=\d)", "0.", re.sub(r"(?<=\d),(?=\d)", ".", text.strip().rstrip("*")))
    if not re.search(r"\d", text):
        return text.lower()
    parts = re.search(rf"%\s*({_BASIS})?\s*$", text, re.IGNORECASE)
    basis = f" {parts[1].strip('()')}" if parts and parts[1] else ""
    text = re.sub(r"(?:wt\.?|vol\.?)?\s?%.*?(?=-|to|and|$)", " ", text, flags=re.IGNORECASE)
    text = re.sub(r"\s*(?:-|\bto\b|\band\b)\s*", " - ", re.sub(r"up to", "up_to", text, flags=re.IGNORECASE))
    text = re.sub(r"([<>]=|=[<>]|[<>≤≥~])\s*", r"\1 ", text).replace("up_to", "up to")
    return f"{' '.join(text.split())} %{basis}"


def _cut_formula(cells: list[str]) -> tuple[str, list[Field]]:
    """Return the name in the first cell of a text, and a formula that is a cell or a word at an end of the name."""
    words = cells[0].split()
    for index in (-1, 0):
        if words and is_formula(word := words[index].strip("(),;")):
            del words[index]
            return " ".join(words), [Field("formula", word)]
    found = [Field("formula", cell) for cell in cells[1:] if is_formula(cell) or cell in _SYMBOLS]
    return " ".join(words), found[:1]


def clean_name(text: str) -> str:
    """Strip the rest of the other fields from a name."""
    text = re.sub(r"\(\s*[,;)]*\s*\)|\(\s*$|\.{2,}\s*%?|\s{2,}", " ", text)
    text = re.sub(r"^[\s\-*•·:;,|.)/]+|[\s\-*:;,|/(]+$", "", text)
    return text if re.search(r"[A-Za-z]{2}", text) else ""


def read_fields(line: str) -> list[Field]:
    """Return the fields of one line in their order. Text between two recognised fields is a name.

    A number like a CAS number with a wrong check digit is a "bad_cas", which only separates fields. "Trade secret" is a
    name only if the line has no other name.
    """
    line = _NO_VALUE.sub("  ", _NOISE.sub("  ", _COLUMN_GAP.sub("\t", line)))
    fields = _split_fields(_SECRET.sub("  ", line))
    return fields if any(field.kind == "name" for field in fields) else _split_fields(line)


def _split_fields(line: str) -> list[Field]:
    line, kept = _hide_polymer_content(line)
    marks = sorted([*CAS_SHAPE.finditer(line), *_concentrations(line)], key=re.Match.start)
    fields: list[Field] = []
    position = 0
    for mark in marks:
        if mark.start() >= position:
            if mark.re is CAS_SHAPE:
                value = Field("cas" if is_cas_number(mark[0]) else "bad_cas", mark[0])
            else:
                value = Field("concentration", tidy_concentration(mark[0]))
            fields += [*_name_fields(line[position : mark.start()].replace("\0", kept)), value]
            position = mark.end()
    return fields + _name_fields(line[position:].replace("\0", kept))


def _hide_polymer_content(line: str) -> tuple[str, str]:
    """Replace a percentage in a hydrocarbon's name ("<2% aromatics") with a mark; return line and percentage."""
    found = _POLYMER_CONTENT.search(line)
    return (line[: found.start()] + "\0" + line[found.end() :], found[0]) if found else (line, "")


def _concentrations(line: str) -> list[re.Match[str]]:
    """Return the concentrations, without parts of CAS numbers, limits ("10 %: Eye Irrit.") and other quantities.

    A bare number is a concentration only beside a CAS number or as the only text of its line.
    """
    cas_numbers = [found.span() for found in CAS_SHAPE.finditer(line)]
    concentrations: list[re.Match[str]] = []
    for found in CONCENTRATION.finditer(line):
        is_in_cas = any(found.start() < end and start < found.end() for start, end in cas_numbers)
        is_bare = re.fullmatch(NUMBER, found[0].rstrip("*")) and not cas_numbers and found[0] != line.strip()
        if not (is_in_cas or is_bare or _OTHER_UNIT.match(line, found.end())):
            concentrations.append(found)
    return concentrations or list(_NUMBER_BEFORE_CAS.finditer(line))


def _name_fields(text: str) -> list[Field]:
    """Return the formula and the name in the text between two other fields; the cells after the first are synonyms."""
    text = re.sub(r"[()\[\]]+\s*$", "", text) if text.count("(") < text.count(")") else text
    cells = [cell.strip() for cell in text.split("\t") if cell.strip(" ,;:-*")]
    rest, fields = _cut_formula(cells or [""])
    name = clean_name(rest)
    return [Field("name", name), *fields] if name else fields
