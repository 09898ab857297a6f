"""Stores with values and calls of every kind, for the tests of the dashboard."""

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from mcp_mirror.observability.events import CallEvent
from mcp_mirror.payload.json_spans import kind_at, members, trim
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.stores.event_log import SumKey, Sums
from mcp_mirror.types import Descriptor, Provenance

REFUSED = "The value may not go to tickets: its confidentiality is internal, and tickets accepts only public."
INCOMPLETE = "The text begins like a memory path but its UUID is incomplete, so it was passed on as text."
NOW = 1_790_000_000.0
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def open_disk(folder: Path, clock: Any) -> DiskStore:
    return DiskStore(StorePolicy(kind="disk", fsync=False), clock, folder)


def base_of(tool: str, number: int) -> str:
    return f"{tool}-{UUID(int=0x5F0A3C520C1E4A528F2B000000000000 + number, version=4)}"


def describe(base: str, blob: bytes, tool: str, upstream: str, created: float, **more: Any) -> Descriptor:
    kind = more.pop("kind", kind_at(blob, trim(blob).start))
    known = members(blob, trim(blob)) if kind == "object" else ()
    source = Provenance(upstream, tool, "0" * 64, more.pop("inputs", ()))
    return Descriptor(
        base, kind, len(blob), len(blob) // 4, known, created, more.pop("expires", created + 7 * 86_400), source, **more
    )


async def put(store: Store, value: object, tool: str, number: int, **more: Any) -> str:
    """Store a value and return its path."""
    blob = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
    namespace, upstream = more.pop("namespace", "local"), more.pop("upstream", "crm")
    created = more.pop("created", NOW)
    base = base_of(more.pop("label", tool), number)
    await store.put(namespace, describe(base, blob, tool, upstream, created, **more), (blob,))
    return base


def png(width: int = 160, height: int = 90) -> bytes:
    """A PNG with a gradient."""
    rows = b"".join(
        b"\0" + b"".join(bytes((x * 255 // width, y * 255 // height, 160)) for x in range(width)) for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def image_block(data: bytes, media_type: str) -> bytes:
    block = {"type": "image", "data": base64.b64encode(data).decode(), "mimeType": media_type}
    return json.dumps(block, separators=(",", ":")).encode()


def orders(count: int) -> list[dict[str, Any]]:
    states = ("paid", "refunded", "open")
    return [
        {
            "order_id": 1000 + at,
            "customer": f"customer{at % 40}@example.org",
            "amount_cents": 199 + 37 * (at % 500),
            "status": states[at % 3],
            "items": [{"sku": f"A-{at % 9}", "count": 1 + at % 4}],
        }
        for at in range(count)
    ]


def make_call(number: int, at: float, tool: str, upstream: str, outcome: str = "ok", **more: Any) -> CallEvent:
    facts: dict[str, Any] = {"milliseconds": 40.0, "reason": "", "bytes": 1800, "sent": 320, "kept_out": 0, **more}
    return CallEvent(id=f"{number:016x}", at=at, tool=tool, upstream=upstream, outcome=outcome, **facts)


async def log_calls(store: Store, calls: Sequence[CallEvent], namespace: str = "local") -> None:
    """Append calls, the oldest first, with their sums."""
    sums: dict[SumKey, Sums] = {}
    for one in calls:
        key = (int(one.at) // 3600, one.upstream, one.tool)
        added = Sums(
            1,
            one.outcome == "error",
            one.outcome == "refused",
            one.bytes,
            one.sent,
            one.kept_out,
            int(one.milliseconds),
        )
        sums[key] = sums.get(key, Sums()).plus(added)
    await store.events.append(namespace, [msgspec.msgpack.encode(one) for one in calls], sums, keep=10_000)


async def fill_busy(store: Store, now: float = NOW) -> dict[str, str]:
    """Store values of every kind and the calls that made them; return paths by name."""
    found = {
        "orders": await put(store, orders(1500), "list_orders", 1, created=now - 3400),
        "log": await put(store, _log(4000), "read_text_file", 2, upstream="files", created=now - 2600),
        "image": await put(
            store,
            image_block(png(), "image/png"),
            "screenshot",
            3,
            upstream="browser",
            kind="binary",
            media_type="image/png",
            created=now - 1500,
        ),
        "report": await put(
            store,
            {"title": "Refunds", "rows": orders(40), "meta": {"source": "crm", "pages": [1, 2, 3]}, "notes": None},
            "build_report",
            4,
            upstream="reports",
            inputs=(base_of("list_orders", 1),),
            created=now - 900,
            labels={"sources": "crm,reports", "integrity": "untrusted", "confidentiality": "internal"},
        ),
        "number": await put(store, b"3.14159265358979323846", "measure", 5, upstream="lab", created=now - 600),
        "query": await put(
            store,
            orders(12),
            "memory_query",
            6,
            upstream="",
            inputs=(base_of("list_orders", 1),),
            created=now - 300,
        ),
    }
    await log_calls(store, list(_busy_calls(found, now)))
    return found


def _log(lines: int) -> str:
    levels = ("info", "info", "warning", "ERROR")
    return "".join(f"{at:05d} {levels[at % 4]} disk sda request took {at % 17} ms\n" for at in range(lines))


def _busy_calls(found: dict[str, str], now: float) -> Iterable[CallEvent]:
    arguments = '{"customer":"<text, 24 characters>","limit":1500}'
    for day in range(6, 0, -1):
        for at in range(4 + day):
            yield make_call(
                1000 * day + at,
                now - day * 86_400 + at * 60,
                "list_orders_mirrored",
                "crm",
                "stored",
                sent=140,
                kept_out=9_000 + 1_700 * day,
                bytes=150_000,
                arguments=arguments,
            )
    orders_path, image, report = found["orders"], found["image"], found["report"]
    yield make_call(
        1,
        now - 3400,
        "list_orders_mirrored",
        "crm",
        "stored",
        milliseconds=812.0,
        bytes=153_900,
        sent=142,
        kept_out=51_200,
        path=orders_path,
        arguments=arguments,
    )
    yield make_call(
        2,
        now - 2600,
        "read_text_file_mirrored",
        "files",
        "stored",
        bytes=164_000,
        sent=150,
        kept_out=52_100,
        path=found["log"],
        arguments='{"path":"<text, 21 characters>"}',
    )
    yield make_call(
        3,
        now - 1500,
        "screenshot_mirrored",
        "browser",
        "stored",
        milliseconds=2310.0,
        bytes=44_000,
        sent=40,
        kept_out=1_400,
        path=image,
        arguments="{}",
    )
    yield make_call(
        4,
        now - 900,
        "build_report_mirrored",
        "reports",
        "stored",
        milliseconds=95.0,
        bytes=9_200,
        sent=160,
        kept_out=2_600,
        path=report,
        inputs=(orders_path,),
        arguments=json.dumps({"orders": orders_path, "title": "<text, 7 characters>"}),
    )
    yield make_call(
        5,
        now - 700,
        "send_mail_mirrored",
        "mail",
        "error",
        milliseconds=15_020.0,
        bytes=240,
        sent=60,
        inputs=(report,),
        arguments=json.dumps({"body": report, "to": "<text, 18 characters>"}),
    )
    yield make_call(
        6,
        now - 600,
        "measure_mirrored",
        "lab",
        "ok",
        milliseconds=4.0,
        bytes=60,
        sent=18,
        arguments='{"unit":"<text, 2 characters>"}',
    )
    yield make_call(
        7,
        now - 500,
        "post_comment_mirrored",
        "tickets",
        "refused",
        reason="flow",
        bytes=400,
        sent=120,
        inputs=(report,),
        arguments=json.dumps({"text": report}),
        why=(("", "", REFUSED),),
    )
    yield make_call(
        8,
        now - 300,
        "memory_query",
        "",
        "stored",
        bytes=2_400,
        sent=310,
        kept_out=0,
        inputs=(orders_path,),
        path=found["query"],
        arguments=json.dumps({"memory_path": orders_path, "expression": "<text, 31 characters>"}),
    )
    yield make_call(
        9,
        now - 120,
        "search_mirrored",
        "crm",
        "ok",
        milliseconds=130.0,
        bytes=5_100,
        sent=1_320,
        arguments='{"query":"<text, 50 characters>"}',
        why=(("/query", "list_orders-5f0a3c52", INCOMPLETE),),
    )
    yield make_call(
        10,
        now - 20,
        "memory_read",
        "",
        "ok",
        milliseconds=3.0,
        bytes=4_100,
        sent=1_050,
        inputs=(found["log"],),
        arguments=json.dumps({"memory_path": found["log"], "by": "lines", "limit": 40}),
    )
