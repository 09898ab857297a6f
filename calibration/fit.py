"""Computes the table in the package from measured counts.

1. Pieces and parts come from a wide collection (`vocabulary.py`), and each tokenizer counts them (`measure.py`).
2. For rare pieces, a rule per class of characters is fitted to the costs of their parts.
3. A ridge regression on whole texts corrects the rules, and the costs of tokenizers that join over pieces.
4. The errors for whole texts give the common error of all rare pieces of a class. Each text is predicted from texts of
   other kinds, without the pieces that only its own package may have added. The margin is the smallest that very few
   texts exceed, because it must also cover texts unlike the fitted ones.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from counts import TOKENIZERS
from mcp_mirror.tokens.costs import (
    UNIT,
    CostTable,
    Margin,
    Rule,
    classify_piece,
    count_joints,
    split,
    split_rare,
    with_sum,
)
from measure import JOINING, measured, measured_parts
from table_file import build_lexicon, lanes
from texts import KINDS, Text
from vocabulary import Seen, candidate_parts, entries, spaced_share, wide_collection

CLASSES: Final = (
    "space", "digit", "punctuation", "lower", "joined", "upper", "initials",
    "title", "camel", "cased", "tangled", "latin", "greek", "cyrillic",
    "arabic", "devanagari", "script", "symbol", "kana", "han", "hangul", "astral", "emoji",
    "extended", "private",
)  # fmt: skip
BLOCKS: Final = {
    "latin": (0x180, 0x370), "greek": (0x370, 0x400), "cyrillic": (0x460, 0x530), "script": (0x600, 0x1E00),
    "symbol": (0x2070, 0x2FFF), "kana": (0x3041, 0x3100), "han": (0x3400, 0xA000), "hangul": (0xAC00, 0xD7A4),
    "astral": (0x10000, 0x1F000), "emoji": (0x1FA00, 0x1FB00), "extended": (0x20000, 0x2A6E0),
}  # fmt: skip
"""Where characters are drawn from for the cost of one that is in no table."""
BY_PARTS_ALONE: Final = {"symbol", "astral", "punctuation", "space", "digit", "emoji", "extended", "private"}
RARE: Final = 1200
"""Rare pieces of a class that its rule is fitted to."""
FREEDOM: Final = {
    name: (0.06, 0.1, 0.08, 0.15, 0.08) if name in JOINING else (0.0, 0.0, 0.08, 0.0, 0.0) for name in TOKENIZERS
}
"""Standard deviations that the regression expects: of a class's costs as a factor, and as tokens per piece; of its
rule, as a factor; of a joint, and of one piece, in tokens. Tokenizers that split at our pieces keep measured costs."""
FOLDS: Final = 4
"""Parts that the kinds are dealt out to; each is predicted by the others."""
LEAST_DOUBT: Final = 0.02
"""Share of their tokens that all rare pieces of a class together may be wrong by at least."""
CORRECTED: Final = 600
"""Most frequent pieces that are corrected one by one."""


@dataclass(frozen=True)
class Ground:
    """What is measured.

    Entries with their tokens, and which of them hold without one package; parts; rare pieces by class with their
    tokens; unknown characters.
    """

    entries: list[str]
    sure: frozenset[str]
    tokens: Any
    parts: dict[str, int]
    rare: dict[str, list[str]]
    truth: dict[str, Any]
    unknown: dict[str, int]

    def table(
        self, units: Any, rules: Mapping[str, tuple[Rule, ...]], margins: Sequence[Margin] = (), joints: Any = None
    ) -> CostTable:
        """A table of these costs."""
        rows = map(with_sum, units.astype(int).tolist())
        each = () if joints is None else tuple(tuple(float(f"{x:.4g}") for x in row) for row in joints)
        costs = dict(zip(self.entries, rows, strict=True))
        lexicons = build_lexicon(costs), build_lexicon(self.parts)
        return CostTable(TOKENIZERS, tuple(margins), rules, self.unknown, *lexicons, each)


def measure_ground() -> Ground:
    """Choose pieces and parts, and let each tokenizer count them."""
    wide = wide_collection()
    chosen = entries(wide)
    spaced = spaced_share()
    rare = _rare(wide, chosen)
    pieces = [*chosen, *(piece for each in rare.values() for piece in each)]
    tokens = np.array([measured(name, pieces, spaced) for name in TOKENIZERS]).T
    truth = dict(zip(pieces[len(chosen) :], tokens[len(chosen) :], strict=True))
    parts = known_parts(candidate_parts(wide))
    sure = frozenset(piece for piece, is_sure in chosen.items() if is_sure)
    return Ground(list(chosen), sure, tokens[: len(chosen)], parts, rare, truth, unknown_costs(set(parts)))


def _rare(wide: Mapping[str, Seen], chosen: Mapping[str, bool]) -> dict[str, list[str]]:
    """Pieces that hardly missed the table, by class."""
    rare: dict[str, list[str]] = defaultdict(list)
    others = sorted(piece for piece in wide if not chosen.get(piece) and "\0" not in piece and "\ufffd" not in piece)
    for piece in random.Random(2).sample(others, len(others)):
        named = classify_piece(piece)
        if len(piece) <= 24 and len(rare[named]) < RARE:
            rare[named].append(piece)
    return rare


def known_parts(candidates: Sequence[str]) -> dict[str, int]:
    """Of these parts those that some tokenizer has cheaper than any two parts of theirs."""
    counts = measured_parts(candidates)
    at = {part: row for row, part in enumerate(candidates)}
    kept = {}
    for part, row in at.items():
        pairs = ((at.get(part[:cut]), at.get(part[cut:])) for cut in range(1, len(part)))
        least = [counts[one] + counts[other] for one, other in pairs if one is not None and other is not None]
        if not least or (counts[row] < np.min(least, axis=0)).any():
            kept[part] = with_sum((counts[row] * UNIT).tolist())
    return kept


def unknown_costs(known: set[str]) -> dict[str, int]:
    """Units of a character that is in no table, by class: the mean of such characters."""
    drawn = {}
    for name, (low, high) in BLOCKS.items():
        others = [chr(code) for code in range(low, high) if chr(code).isprintable() and chr(code) not in known]
        random.Random(name).shuffle(others)
        drawn[name] = others[:250]
    counts = iter(measured_parts([one for each in drawn.values() for one in each]))
    means = {name: np.mean([next(counts) for _ in each], axis=0) for name, each in drawn.items() if each}
    return {name: with_sum(np.ceil(mean * UNIT).astype(int).tolist()) for name, mean in means.items()}


def fit_rules(ground: Ground, table: CostTable, factor: Mapping[str, Sequence[float]]) -> dict[str, tuple[Rule, ...]]:
    """Rules by class; `factor` is by class what a measured cost is to be times."""
    rules = {}
    for name in CLASSES:
        pieces = ground.rare.get(name, [])
        if len(pieces) < 40:
            rules[name] = (Rule((1.0, 0.0, 0.0, 0.0), 0.3, LEAST_DOUBT),) * len(TOKENIZERS)
            continue
        sums = [(lanes(packed, len(TOKENIZERS)), count) for packed, count in map(table.sum_parts, pieces)]
        sizes = list(map(len, pieces))
        rules[name] = tuple(
            _rule(
                np.array(
                    [[parts[at], count, size, 1] for (parts, count), size in zip(sums, sizes, strict=True)], float
                ),
                np.array([ground.truth[piece][at] for piece in pieces]) * UNIT * factor[name][at],
                by_parts_alone=name in BY_PARTS_ALONE,
            )
            for at in range(len(TOKENIZERS))
        )
    return rules


def _rule(features: Any, units: Any, *, by_parts_alone: bool) -> Rule:
    listed = (features[:, 1] == features[:, 2]) & (features[:, 2] >= 16)
    chosen = ~listed if (~listed).sum() > 30 else np.ones(len(units), bool)
    weight = 1 / np.sqrt(np.maximum(units[chosen], UNIT))
    scaled, wanted = features[chosen] * weight[:, None], units[chosen] * weight
    if by_parts_alone:
        share = (scaled[:, 0] @ wanted) / max(scaled[:, 0] @ scaled[:, 0], 1e-9)
        weights = np.array([max(0.6, share), 0, 0, 0])
    else:
        ridge = np.array([0.01, 3, 0.3, 3])
        weights = np.linalg.solve(scaled.T @ scaled + np.diag(ridge), scaled.T @ wanted + np.array([0.01, 0, 0, 0]))
    error = units - np.where(listed, features[:, 0], np.maximum(features @ weights, UNIT))
    rounded = [float(f"{number:.5g}") for number in weights]
    spread = float(np.mean(error * error / np.maximum(units, UNIT) / UNIT))
    return Rule((rounded[0], rounded[1], rounded[2], rounded[3]), float(f"{spread:.3g}"), LEAST_DOUBT)


@dataclass(frozen=True)
class Features:
    """What is in each text.

    Costs and numbers of known pieces and costs of rare ones, by class; joints; frequent pieces one by one; the variance
    of rare ones.
    """

    known: Any
    number: Any
    rare: Any
    joints: Any
    single: Any
    variance: Any
    top: list[str]


def features_of(ground: Ground, table: CostTable, texts: Sequence[Text]) -> Features:
    """Read each text with a table, as if the pieces that are not sure were not in it."""
    counts = [Counter(split(one.text)) for one in texts]
    at = {entry: index for index, entry in enumerate(ground.entries) if entry in ground.sure}
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    top = [piece for piece, _ in total.most_common(3 * CORRECTED) if piece in at][:CORRECTED]
    column = {piece: index for index, piece in enumerate(top)}
    width, classes, size = len(TOKENIZERS), len(CLASSES), len(texts)
    known, rare = np.zeros((size, classes, width)), np.zeros((size, classes, width))
    number, single, variance = np.zeros((size, classes)), np.zeros((size, len(top))), np.zeros((size, width))
    named: dict[str, int] = {}
    guessed: dict[str, tuple[Any, Any]] = {}
    for row, count in enumerate(counts):
        for piece, times in count.items():
            if piece not in named:
                named[piece] = CLASSES.index(classify_piece(piece))
            if piece in at:
                known[row, named[piece]] += times * ground.tokens[at[piece]]
                number[row, named[piece]] += times
                if piece in column:
                    single[row, column[piece]] = times
                continue
            if piece not in guessed:
                parts = [[lanes(packed, width) for packed in table.guess(part)[:2]] for part in split_rare(piece)]
                guessed[piece] = tuple(np.sum(parts, axis=0) / UNIT)
            cost, spread = guessed[piece]
            rare[row, named[piece]] += times * cost
            variance[row] += times * times * spread
    joints = np.array([count_joints(one.text) for one in texts], float)
    return Features(known, number, rare, joints, single, variance, top)


def _regress(found: Features, at: int, true: Any, chosen: Any) -> tuple[Any, Any]:
    """Corrections, and the tokens of all texts with them; fitted to the chosen texts."""
    columns = np.concatenate([found.known[:, :, at], found.number, found.rare[:, :, at], found.joints, found.single], 1)
    base = found.known[:, :, at].sum(1) + found.rare[:, :, at].sum(1)
    deviation = np.sqrt((0.006 * true) ** 2 + 0.02 * true + 0.5 * found.variance[:, at])
    sizes = (len(CLASSES), len(CLASSES), len(CLASSES), found.joints.shape[1], len(found.top))
    freedom = np.repeat(FREEDOM[TOKENIZERS[at]], sizes)
    used = freedom > 0
    scaled = (columns / deviation[:, None])[chosen][:, used] * freedom[used]
    wanted = ((true - base) / deviation)[chosen]
    correction = np.zeros(len(freedom))
    correction[used] = np.linalg.solve(scaled.T @ scaled + np.eye(int(used.sum())), scaled.T @ wanted) * freedom[used]
    return correction, base + columns @ correction


def _doubts(estimate: Any, rare: Any, true: Any) -> Any:
    """By class, the share of their tokens that rare pieces fall short by together.

    Components of variance: the squared errors of texts as a sum of non-negative shares of the squared tokens of each
    class, by least squares (multiplicative updates, as Lee and Seung, 2001, have them). What is too much by an estimate
    counts as no error, and what is too little as two, as many as there would be if errors went either way.
    """
    share = (rare / estimate[:, None]) ** 2
    squares = np.concatenate([share, 1 / estimate[:, None]], 1)
    wanted = squares.T @ (2 * (np.maximum(true - estimate, 0) / estimate) ** 2)
    among = squares.T @ squares
    components = np.full(squares.shape[1], 1e-4)
    for _ in range(3000):
        components *= np.maximum(wanted, 1e-12) / np.maximum(among @ components, 1e-12)
    seen = share.sum(0) > 0
    return np.where(seen, np.maximum(np.sqrt(components[:-1]), LEAST_DOUBT), LEAST_DOUBT)


def _margin(estimate: Any, found: Features, at: int, true: Any, judged: Any) -> tuple[Margin, Any]:
    """The margin with the fewest judged texts over 110 %, and the doubts of all classes.

    Of those that leave two texts short at most, with two fifths of each error to spare.
    """
    long = true > 150
    doubts = _doubts(estimate[long], found.rare[long, :, at], true[long])
    estimate, true, judged = estimate[long], true[long], judged[long]
    together = found.rare[long, :, at] * doubts
    best, chosen, factor = math.inf, Margin(0.0, 0.0, 0.0), 1.0
    for noise in (0.005, 0.01, 0.03, 0.06) if TOKENIZERS[at] in JOINING else (0.0005, 0.003, 0.01):
        variance = found.variance[long, at] + estimate * noise
        for times in (0.5, 0.75, 1.0, 1.5, 2.0):
            deviation = np.sqrt(variance + ((times * together) ** 2).sum(1))
            for deviations in np.arange(1.5, 6.1, 0.5):
                need = (true + 0.4 * np.maximum(true - estimate, 0) - deviations * deviation) / estimate - 1
                share = max(0.002, float(np.sort(need)[-3]))
                ratio = ((estimate * (1 + share) + deviations * deviation) / true)[judged]
                cost = float(np.mean(ratio > 1.1) + 0.5 * np.mean(ratio))
                if cost < best:
                    best, chosen, factor = cost, Margin(round(share, 4), float(deviations), noise), times
    return chosen, doubts * factor


def fit(texts: Sequence[Text], true: Sequence[Sequence[int]]) -> CostTable:
    """The table for the package, from calibration texts and their counts by each tokenizer."""
    ground = measure_ground()
    units = np.round(ground.tokens * UNIT)
    factor = {name: [1.0] * len(TOKENIZERS) for name in CLASSES}
    rules = fit_rules(ground, ground.table(units, {}), factor)
    found = features_of(ground, ground.table(units, rules), texts)
    fold = np.array([KINDS.index(one.kind) % FOLDS for one in texts])
    judged = np.array([one.kind in KINDS[:11] for one in texts])
    final, margins, doubts = ground.tokens.copy(), [], np.zeros((len(CLASSES), len(TOKENIZERS)))
    joints = np.zeros((len(TOKENIZERS), len(count_joints(""))))
    named = np.array([CLASSES.index(classify_piece(entry)) for entry in ground.entries])
    index = {entry: row for row, entry in enumerate(ground.entries)}
    sizes = (len(CLASSES), len(CLASSES), len(CLASSES), joints.shape[1])
    for at, name in enumerate(TOKENIZERS):
        wanted = np.array(true[at], float)
        unseen = [_regress(found, at, wanted, fold != one)[1] for one in range(FOLDS)]
        estimate = np.choose(fold, unseen)
        margin, doubts[:, at] = _margin(estimate, found, at, wanted, judged)
        margins.append(margin)
        _describe(name, estimate, wanted, texts, margins[-1])
        correction, _ = _regress(found, at, wanted, np.ones(len(texts), bool))
        known, number, rare, joints[at], single = np.split(correction, np.cumsum(sizes))
        final[:, at] = final[:, at] * (1 + known[named]) + number[named]
        for piece, change in zip(found.top, single, strict=True):
            final[index[piece], at] += change
        for one, change in zip(CLASSES, rare, strict=True):
            factor[one][at] = 1 + change
    corrected = np.clip(np.round(final * UNIT), 1, 65535)
    rules = fit_rules(ground, ground.table(units, {}), factor)
    for name, doubted in zip(CLASSES, doubts.tolist(), strict=True):
        each = zip(rules[name], doubted, strict=True)
        rules[name] = tuple(msgspec.structs.replace(rule, doubt=float(f"{doubt:.3g}")) for rule, doubt in each)
    return ground.table(corrected, rules, margins, joints)


def _describe(name: str, estimate: Any, true: Any, texts: Sequence[Text], margin: Margin) -> None:
    """Print how the texts of each kind are predicted by the others, without a margin."""
    print(f"\n{name}: {margin}\n{'kind':10}{'mean':>8}{'spread':>8}{'least':>8}{'most':>8}", flush=True)
    for kind in KINDS:
        share = np.array(
            [e / t for e, t, one in zip(estimate, true, texts, strict=True) if one.kind == kind and t > 150]
        )
        print(f"{kind:10}{share.mean():8.1%}{share.std():8.2%}{share.min():8.1%}{share.max():8.1%}")
