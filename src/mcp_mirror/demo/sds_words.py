"""The words of safety data sheets, as tables of alternatives: section titles, labels, column heads, hazard classes.

For a sheet with another wording, add a line to one of these tables.
"""

import re

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
