"""Texts of the kinds that machines write, each in several styles, from a seed.

`STYLES[kind]` is (styles for calibration, styles held out). A style is a function of a `random.Random` that gives
one line, record or document; a text is made of as many as its length asks for.
"""

import base64
import json
import random
import string
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

Style = Callable[[random.Random], str]

WORDS: Final = (
    "account active address alert amount archive asset author balance batch billing branch bucket build cache campaign "
    "category channel client cluster comment commit company config contact content country created currency customer "
    "dataset date deleted delivery department deploy description device discount document domain draft due email "
    "employee enabled endpoint error event expires failure feature field file filter finance folder format gateway "
    "group handler health height history host image import index ingress instance invoice issue item job kernel label "
    "language latency ledger level license limit list location login lookup machine manager memory message method "
    "metric model module monitor name network node note number object offset order owner package page parent partner "
    "password payload payment percent period phone pipeline policy port price priority process product profile project "
    "provider quantity query queue quota rate reason receipt record refund region release replica report request "
    "resource response result retry review role route rule sample schedule schema score search secret section segment "
    "sensor sequence server service session setting shipment signal size snapshot source status storage stream subject "
    "summary supplier support table target task tax team temperature tenant thread ticket timeout title token total "
    "trace tracking traffic transaction transfer trigger type unit updated upload usage user value vendor version view "
    "volume warehouse warning weight width window worker workflow zone"
).split()
NAMES: Final = (
    "Anna Müller|James Carter|Wei Zhang|María López|Olga Ivanova|Hiroshi Tanaka|Fatima Hassan|Lucas Silva|Emma Brown|"
    "Noah Johnson|Chloé Dubois|Raj Patel|Ingrid Larsen|Kwame Mensah|Sofia Rossi|Liam O'Brien|Yuki Sato|Ahmed Ali|"
    "Elena Popescu|David Kim|Grace Nguyen|Tomáš Novák|Zofia Kowalska|Peter Schmidt"
).split("|")
CITIES: Final = (
    "Berlin Paris London Madrid Tokyo Toronto Boston Austin Sydney Mumbai Lagos Oslo Wien Zürich Lyon".split()
)
LEVELS: Final = ("INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR")
VERBS: Final = "started finished failed retrying connected closed accepted rejected loaded saved expired queued".split()
_B64URL: Final = string.ascii_letters + string.digits + "-_"


def words(r: random.Random, low: int, high: int) -> str:
    """Some words, apart by spaces."""
    return " ".join(r.choices(WORDS, k=r.randint(low, high)))


def identifier(r: random.Random) -> str:
    """A UUID of version 4, from the seed."""
    return str(uuid.UUID(int=r.getrandbits(128), version=4))


def hexadecimal(r: random.Random, digits: int) -> str:
    """So many hexadecimal digits."""
    return f"{r.getrandbits(4 * digits):0{digits}x}"


def stamp(r: random.Random, form: str = "iso") -> str:
    """A moment of some year, in one of the usual forms."""
    year, month, day = r.randint(2015, 2027), r.randint(1, 12), r.randint(1, 28)
    clock = f"{r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02}"
    month_name = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()[month - 1]
    return {
        "iso": f"{year}-{month:02}-{day:02}T{clock}.{r.randint(0, 999):03}Z",
        "plain": f"{year}-{month:02}-{day:02} {clock},{r.randint(0, 999):03}",
        "slash": f"{year}/{month:02}/{day:02} {clock}",
        "apache": f"{day:02}/{month_name}/{year}:{clock} +0{r.randint(0, 9)}00",
        "syslog": f"{month_name} {day:2} {clock}",
        "day": f"{year}-{month:02}-{day:02}",
        "epoch": str(r.randint(1_400_000_000, 1_900_000_000)),
    }[form]


def address(r: random.Random) -> str:
    """An IPv4 address."""
    return ".".join(str(r.randint(1, 254)) for _ in range(4))


def encoded(r: random.Random, size: int) -> str:
    """Base64 of so many random bytes."""
    return base64.b64encode(r.randbytes(size)).decode()


def _wrapped(text: str, width: int) -> str:
    return "\n".join(text[at : at + width] for at in range(0, len(text), width))


def _record(r: random.Random) -> dict[str, Any]:
    values: Sequence[Callable[[], Any]] = (
        lambda: r.randint(0, 10**6),
        lambda: round(r.uniform(0, 1000), r.randint(1, 4)),
        lambda: r.choice((True, False, None)),
        lambda: words(r, 1, 6),
        lambda: identifier(r),
        lambda: stamp(r),
        lambda: r.choice(NAMES),
        lambda: [r.randint(0, 99) for _ in range(r.randint(0, 5))],
        lambda: {r.choice(WORDS): words(r, 1, 2), "id": r.randint(1, 9999)},
        lambda: f"https://{r.choice(WORDS)}.example.com/{r.choice(WORDS)}/{r.randint(1, 99999)}",
        lambda: r.choice(WORDS).upper(),
    )
    return {_key(r): r.choice(values)() for _ in range(r.randint(3, 10))}


def _key(r: random.Random) -> str:
    first, second = r.choice(WORDS), r.choice(WORDS)
    return r.choice((first, f"{first}_{second}", first + second.title(), f"{first}_id"))


def _point(r: random.Random) -> dict[str, Any]:
    at = [round(r.uniform(-180, 180), 6), round(r.uniform(-90, 90), 6)]
    place = {"name": r.choice(CITIES), "population": r.randint(10**3, 10**7)}
    return {"type": "Feature", "geometry": {"type": "Point", "coordinates": at}, "properties": place}


def _schema(r: random.Random) -> dict[str, Any]:
    kinds = ("string", "integer", "number", "boolean", "array")
    members = {_key(r): {"type": r.choice(kinds), "description": words(r, 3, 9)} for _ in range(r.randint(2, 6))}
    return {"type": "object", "properties": members, "required": list(members)[:2], "additionalProperties": False}


def _spans(r: random.Random) -> dict[str, Any]:
    ids = {"traceId": hexadecimal(r, 32), "spanId": hexadecimal(r, 16), "parentSpanId": hexadecimal(r, 16)}
    times = {"startTimeUnixNano": str(r.getrandbits(60)), "durationMs": r.randint(1, 5000)}
    tags = [{"key": f"http.{r.choice(WORDS)}", "value": {"stringValue": r.choice(WORDS)}} for _ in range(3)]
    return {**ids, "name": f"GET /{r.choice(WORDS)}", **times, "attributes": tags}


def _table(r: random.Random) -> dict[str, Any]:
    return {
        "columns": r.sample(WORDS, 4),
        "data": [[r.randint(0, 9999), round(r.gauss(0, 9), 3), r.choice(WORDS), None]],
    }


def _issue(r: random.Random) -> dict[str, Any]:
    user = {"login": r.choice(WORDS) + str(r.randint(1, 99)), "id": r.getrandbits(24), "site_admin": False}
    text = {"title": words(r, 3, 8).capitalize(), "body": words(r, 8, 30).capitalize() + "."}
    return {"number": r.randint(1, 9999), **text, "user": user, "created_at": stamp(r), "labels": r.sample(WORDS, 2)}


def _dumped(make: Callable[[random.Random], Any], **options: Any) -> Style:
    return lambda r: json.dumps(make(r), **options) + "\n"


def _records(r: random.Random) -> list[dict[str, Any]]:
    return [_record(r) for _ in range(r.randint(2, 6))]


def _floats(count: int, places: int, spread: float, separator: str = ",") -> Style:
    return lambda r: separator.join(f"{r.gauss(0, spread):.{places}f}" for _ in range(count)) + "\n"


def _integers(count: int, top: int, separator: str = ",") -> Style:
    return lambda r: separator.join(str(r.randint(0, top)) for _ in range(count)) + "\n"


def _emoji(pools: Sequence[Sequence[int]], between: str = "", run: int = 8) -> Style:
    characters = [chr(code) for pool in pools for code in range(*pool)]
    return lambda r: between.join(r.choices(characters, k=r.randint(1, run))) + r.choice((" ", "", "\n"))


FACES: Final = ((0x1F600, 0x1F645),)
THINGS: Final = ((0x1F300, 0x1F321), (0x1F330, 0x1F390), (0x1F3A0, 0x1F3CB), (0x1F400, 0x1F4FD))
NEWER: Final = ((0x1F90D, 0x1F93A), (0x1F93C, 0x1F946), (0x1F947, 0x1FA00), (0x1F680, 0x1F6C6))
OLDER: Final = ((0x2600, 0x2605), (0x2614, 0x2616), (0x2648, 0x2654), (0x26F2, 0x26F6), (0x2708, 0x270E))
_TONES: Final = [chr(code) for code in range(0x1F3FB, 0x1F400)]
_HANDS: Final = "👍👎👏🙏👋💪👌✋👊🤝🤞🙌"
_JOINED: Final = "👨‍👩‍👧‍👦 👩‍💻 👨‍🍳 🧑‍🚀 🏳️‍🌈 👩‍❤️‍👨 🤷‍♀️ 🤦‍♂️ 🐻‍❄️ ❤️‍🔥 👨‍👧 🧑‍🎓 👩‍🔬".split()
_FLAGS: Final = "DE FR GB US JP CN BR IN ZA NG SE NO PL IT ES MX CA AU KR TR".split()


def _flag(code: str) -> str:
    return "".join(chr(0x1F1E6 + ord(letter) - ord("A")) for letter in code)


def _chat(r: random.Random) -> str:
    return (
        f"{r.choice(NAMES).split()[0]}: {words(r, 1, 4)} {''.join(r.choices('😀😂🤣😊😍😎😢😡👍🙏🎉🔥❤️✨💯', k=3))}\n"
    )


UUIDS: Final[tuple[tuple[Style, ...], tuple[Style, ...]]] = (
    (
        lambda r: identifier(r) + "\n",
        lambda r: f'"{identifier(r)}",',
        lambda r: f"{identifier(r)},{identifier(r)}\n",
        lambda r: hexadecimal(r, 32) + "\n",
        lambda r: f'{{"id": "{identifier(r)}"}}\n',
        lambda r: f"user-{identifier(r)} ",
        lambda r: f"{hexadecimal(r, 40)}  {r.choice(WORDS)}.txt\n",
    ),
    (
        lambda r: identifier(r).upper() + "\n",
        lambda r: f'  "{identifier(r)}",\n',
        lambda r: f"{{{identifier(r)}}};",
        lambda r: f"{identifier(r)} | {identifier(r)} |\n",
        lambda r: hexadecimal(r, 64) + "\n",
        lambda r: f"urn:uuid:{identifier(r)}\n",
        lambda r: f"sha256:{hexadecimal(r, 64)} ",
    ),
)
BASE64: Final[tuple[tuple[Style, ...], tuple[Style, ...]]] = (
    (
        lambda r: encoded(r, r.randint(300, 9000)),
        lambda r: _wrapped(encoded(r, r.randint(300, 3000)), 76) + "\n",
        lambda r: f"data:image/png;base64,{encoded(r, r.randint(300, 3000))}\n",
        lambda r: "".join(r.choices(_B64URL, k=r.randint(300, 900))) + "\n",
        lambda r: f"-----BEGIN CERTIFICATE-----\n{_wrapped(encoded(r, 900), 64)}\n-----END CERTIFICATE-----\n",
        lambda r: encoded(r, 32) + "\n",
    ),
    (
        lambda r: f'{{"data": "{encoded(r, r.randint(300, 6000))}"}}\n',
        lambda r: ".".join("".join(r.choices(_B64URL, k=k)) for k in (36, 180, 43)) + "\n",
        lambda r: f"ssh-ed25519 {encoded(r, 51)} {r.choice(WORDS)}@host\n",
        lambda r: _wrapped(encoded(r, r.randint(300, 3000)), 60) + "\n",
        lambda r: f'"{encoded(r, 18)}", ',
        lambda r: f"data:application/pdf;base64,{encoded(r, r.randint(300, 3000))}",
    ),
)
CSV: Final[tuple[tuple[Style, ...], tuple[Style, ...]]] = (
    (
        _floats(6, 4, 1),
        _floats(3, 15, 1),
        _integers(8, 999),
        _integers(5, 10**9),
        _floats(8, 2, 1000, ";"),
        _floats(5, 6, 0.1, "\t"),
        lambda r: "".join(f"{r.randint(0, 10**6):8}" for _ in range(7)) + "\n",
        lambda r: f"{stamp(r, 'day')},{r.uniform(1, 500):.2f},{r.randint(1, 10**7)}\n",
        lambda r: f"{r.randint(1, 99999)},{r.choice(WORDS)},{r.uniform(0, 9):.3f},{r.choice(CITIES)}\n",
    ),
    (
        _floats(10, 3, 10),
        _floats(4, 17, 1, ", "),
        _integers(12, 99, ";"),
        lambda r: ",".join(f"{r.gauss(0, 1):.6e}" for _ in range(4)) + "\n",
        lambda r: "[" + ", ".join(f"{r.random():.8f}" for _ in range(6)) + "],\n",
        lambda r: f"{stamp(r, 'epoch')},{r.uniform(-90, 90):.6f},{r.uniform(-180, 180):.6f},{r.randint(0, 360)}\n",
        lambda r: (
            f"{r.randint(1, 9999)},{r.randint(0, 1)},{r.randint(0, 100)},{r.uniform(0, 1e6):.2f},,{r.random():.4f}\n"
        ),
        lambda r: " ".join(f"{r.gauss(0, 50):9.4f}" for _ in range(5)) + "\n",
    ),
)
LOGS: Final[tuple[tuple[Style, ...], tuple[Style, ...]]] = (
    (
        lambda r: (
            f"{stamp(r)} {r.choice(LEVELS)} {r.choice(WORDS)} {words(r, 2, 6)} {r.choice(VERBS)} in {r.randint(1, 9999)}ms\n"
        ),
        lambda r: (
            f"{stamp(r, 'plain')} - {r.choice(WORDS)}.{r.choice(WORDS)} - {r.choice(LEVELS)} - {words(r, 3, 9)}\n"
        ),
        lambda r: (
            f'{address(r)} - - [{stamp(r, "apache")}] "GET /{r.choice(WORDS)}/{r.randint(1, 9999)} HTTP/1.1" '
            f"{r.choice((200, 200, 304, 404, 500))} {r.randint(100, 99999)}\n"
        ),
        lambda r: (
            f"{stamp(r, 'syslog')} {r.choice(WORDS)}{r.randint(1, 9)} sshd[{r.randint(100, 32768)}]: "
            f"Failed password for {r.choice(WORDS)} from {address(r)} port {r.randint(1024, 65535)} ssh2\n"
        ),
        lambda r: (
            f"level={r.choice(LEVELS).lower()} ts={stamp(r)} caller={r.choice(WORDS)}.go:{r.randint(1, 999)} "
            f'msg="{words(r, 2, 6)}" id={hexadecimal(r, 16)}\n'
        ),
        lambda r: (
            json.dumps({"ts": stamp(r), "level": r.choice(LEVELS), "msg": words(r, 2, 7), "ms": r.randint(1, 999)})
            + "\n"
        ),
        lambda r: (
            f"[{r.uniform(0, 99999):12.6f}] {r.choice(WORDS)} {hexadecimal(r, 4)}:{hexadecimal(r, 2)}:00.0: {words(r, 2, 5)}\n"
        ),
    ),
    (
        lambda r: (
            f"[{stamp(r, 'slash')}] [{r.choice(LEVELS).lower()}] {r.randint(1, 9999)}#0: *{r.randint(1, 999999)} "
            f"{words(r, 3, 8)}, client: {address(r)}, server: {r.choice(WORDS)}.example.com\n"
        ),
        lambda r: (
            f"{r.choice('IWE')}{r.randint(1, 12):02}{r.randint(1, 28):02} {r.randint(10, 23)}:{r.randint(10, 59)}:"
            f"{r.uniform(10, 59):09.6f} {r.randint(1, 9999):7} {r.choice(WORDS)}_{r.choice(WORDS)}.go:{r.randint(1, 999)}] {words(r, 3, 8)}\n"
        ),
        lambda r: (
            f"{stamp(r)} {identifier(r)} {r.choice(LEVELS)} [{r.choice(WORDS)}-{r.randint(1, 32)}] "
            f"com.example.{r.choice(WORDS)}.{r.choice(WORDS).title()}Service : {words(r, 3, 7)}\n"
        ),
        lambda r: (
            f'  File "/usr/lib/{r.choice(WORDS)}/{r.choice(WORDS)}.py", line {r.randint(1, 999)}, in {r.choice(WORDS)}\n'
            f"    {r.choice(WORDS)} = {r.choice(WORDS)}.{r.choice(WORDS)}({r.choice(WORDS)})\n"
        ),
        lambda r: (
            f"{address(r)} {r.choice(WORDS)} {stamp(r, 'epoch')}.{r.randint(0, 999)} POST /api/v{r.randint(1, 4)}/{r.choice(WORDS)} "
            f'{r.choice((200, 201, 400, 503))} {r.random():.3f} "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"\n'
        ),
        lambda r: (
            f"{r.randint(1, 28):02}-{r.randint(1, 12):02}-2026 {r.randint(0, 23):02}:00 | {r.choice(LEVELS):5} | {r.choice(WORDS)} | {words(r, 3, 9)}\n"
        ),
    ),
)
JSON: Final[tuple[tuple[Style, ...], tuple[Style, ...]]] = (
    (
        _dumped(_record),
        _dumped(_record, separators=(",", ":")),
        _dumped(_records, indent=2),
        _dumped(_point),
        _dumped(_schema, indent=2),
        _dumped(_issue, separators=(",", ":")),
        _dumped(_table),
    ),
    (
        _dumped(_records, indent=4),
        _dumped(_records, separators=(",", ":"), ensure_ascii=False),
        _dumped(_spans),
        _dumped(_spans, separators=(",", ":")),
        _dumped(_issue, indent=2),
        _dumped(_schema, separators=(",", ":")),
        _dumped(_record, indent="\t"),
    ),
)
EMOJI: Final[tuple[tuple[Style, ...], tuple[Style, ...]]] = (
    (
        _emoji(FACES),
        _emoji(THINGS, " "),
        _emoji((*FACES, *THINGS, *NEWER)),
        _emoji(OLDER, "\ufe0f"),
        lambda r: r.choice(_HANDS) + r.choice(_TONES),
        lambda r: r.choice(_JOINED[:8]) + r.choice((" ", "")),
        lambda r: _flag(r.choice(_FLAGS[:12])) + r.choice((" ", "")),
        _chat,
    ),
    (
        _emoji(THINGS),
        _emoji(NEWER, " "),
        _emoji((*OLDER, *FACES), "\n", 4),
        lambda r: "".join(r.choice(_HANDS) + r.choice(_TONES) for _ in range(3)) + "\n",
        lambda r: r.choice(_JOINED) + ",",
        lambda r: f"{_flag(r.choice(_FLAGS))} {r.choice(CITIES)}\n",
        lambda r: f"{r.choice('✅❌⚠️🚀📦🔧🐛')} {words(r, 2, 4)} {r.choice('😀😅🥳🤖👀')}\n",
    ),
)
STYLES: Final = {"UUIDs": UUIDS, "base64": BASE64, "CSV": CSV, "logs": LOGS, "JSON": JSON, "emoji": EMOJI}
