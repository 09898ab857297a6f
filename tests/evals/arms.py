"""The shortest sensible calls for the cases about scripts: with `memory_run`, without it, and without the gateway.

A step is a reply of the model: an answer, or calls that it makes at once. A function gets the messages of the
conversation and returns the step: a model that has read them could write it.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

Messages = list[dict[str, Any]]
Step = Any | Callable[[Messages], Any]
Arm = list[Step]

JOIN = """\
names = {one["id"]: one["name"] for one in customers}
sums = {}
for one in orders:
    sums[one["customer"]] = sums.get(one["customer"], 0) + one["cents"]
best = max(sums, key=lambda one: sums[one])
[names[best], sums[best]]"""
COUNT = """\
from collections import Counter
parts = [line.split("[")[1].split("]")[0] for line in log.splitlines() if " ERROR " in line]
Counter(parts).most_common(1)"""
PAGES = """\
total = 0
for page in range(1, 11):
    found = await tools.search_tickets(word="heating", page=page)
    total += sum(hit["hours"] for hit in found["hits"] if hit["state"] == "open")
total"""
DELETE = """\
for order in orders:
    if order["status"] == "open" and order["cents"] < 600:
        await tools.delete_order(order=order["order"])"""
PARTS = ("cache", "mail", "queue", "search", "upload")


def _results(messages: Messages) -> list[str]:
    """The texts of the results, without the gateway's line below answers of its tools."""
    return [message["content"].removesuffix("\nResult ends.") for message in messages if message["role"] == "tool"]


def _rows(messages: Messages) -> list[dict[str, Any]]:
    """The rows of the first result, without the gateway."""
    rows: list[dict[str, Any]] = json.loads(_results(messages)[0])
    return rows


def _pay_back(messages: Messages) -> Step:
    rows = [row for row in _rows(messages) if row["status"] == "refunded" and row["cents"] > 83_500]
    return {"pay_back": {"rows": rows}}


def _pay_back_queried(messages: Messages) -> Step:
    """Pass the result of the query on: its path if it has one, else the rows that it shows."""
    found = re.search(r'"(memory_query-[0-9a-f-]{36})"', _results(messages)[-1])
    return {"pay_back": {"rows": found[1] if found else json.loads(_results(messages)[-1])}}


def _delete_each(numbers: list[int]) -> Step:
    return [{"delete_order": {"order": number}} for number in numbers]


def _delete_listed(messages: Messages) -> Step:
    rows = _rows(messages)
    return _delete_each([row["order"] for row in rows if row["status"] == "open" and row["cents"] < 600])


def _most_errors(messages: Messages) -> Step:
    lines = (line for line in _results(messages)[0].splitlines() if " ERROR " in line)
    part, count = Counter(re.findall(r"\[(\w+)\]", "\n".join(lines))).most_common(1)[0]
    return f"Most errors: {part}, {count}."


def _page_calls(_messages: Messages) -> Step:
    return [{"search_tickets": {"word": "heating", "page": page}} for page in range(1, 11)]


_ORDERS = {"list_orders": {"year": 2025}}
_BOTH = [_ORDERS, {"list_customers": {}}]
_LOG = {"read_log": {"service": "portal"}}
_PARCELS = {"list_parcels": {"depot": "north"}}
_JOINED = "Sven Olsen, with 761710 cents in all."

ARMS: Mapping[str, Mapping[str, Arm]] = {
    "join_results": {
        "run": [
            _BOTH,
            {"memory_run": {"code": JOIN, "inputs": {"orders": "${PATH_1}", "customers": "${PATH_2}"}}},
            _JOINED,
        ],
        "without": [
            _BOTH,
            {"memory_query": {"memory_path": "${PATH_1}", "expression": "[].[customer, cents]"}},
            [
                {"memory_read": {"memory_path": "${PATH_3}", "by": "items", "offset": start}}
                for start in range(0, 1500, 300)
            ],
            {"memory_grep": {"memory_path": "${PATH_2}", "pattern": "Olsen"}},
            _JOINED,
        ],
        "direct": [_BOTH, _JOINED],
    },
    "count_log": {
        "run": [_LOG, {"memory_run": {"code": COUNT, "inputs": {"log": "${PATH_1}"}}}, "Most errors: ${LAST}"],
        "without": [
            _LOG,
            [{"memory_grep": {"memory_path": "${PATH_1}", "pattern": f"ERROR .{part}.", "limit": 1}} for part in PARTS],
            "Most errors: queue, 31.",
        ],
        "direct": [_LOG, _most_errors],
    },
    "filter_rows": {
        "run": [
            _ORDERS,
            {
                "memory_run": {
                    "code": '[one for one in orders if one["status"] == "refunded" and one["cents"] > 83500]',
                    "inputs": {"orders": "${PATH_1}"},
                }
            },
            {"pay_back": {"rows": "${PATH_2}"}},
            "${LAST}",
        ],
        "without": [
            _ORDERS,
            {"memory_query": {"memory_path": "${PATH_1}", "expression": "[?status=='refunded' && cents > `83500`]"}},
            _pay_back_queried,
            "${LAST}",
        ],
        "direct": [_ORDERS, _pay_back, "${LAST}"],
    },
    "all_pages": {
        "run": [{"memory_run": {"code": PAGES}}, "Together ${LAST} hours."],
        "without": [_page_calls, "Together 3202 hours."],
        "direct": [_page_calls, "Together 3202 hours."],
    },
    "corrected_script": {
        "run": [
            _PARCELS,
            {
                "memory_run": {
                    "code": 'sum(one["grams"] for one in parcels if one["city"] == "Bonn")',
                    "inputs": {"parcels": "${PATH_1}"},
                }
            },
            {
                "memory_run": {
                    "code": 'sum(one["grams"] or 0 for one in parcels if one["city"] == "Bonn")',
                    "inputs": {"parcels": "${PATH_1}"},
                }
            },
            "Together ${LAST} grams.",
        ],
        "without": [
            _PARCELS,
            {"memory_query": {"memory_path": "${PATH_1}", "expression": "sum([?city=='Bonn'].grams)"}},
            "Together ${LAST} grams.",
        ],
        "direct": [_PARCELS, "Together 969051 grams."],
    },
    "asked_call": {
        "run": [
            _ORDERS,
            {"memory_run": {"code": DELETE, "inputs": {"orders": "${PATH_1}"}}},
            "Deleted.",
        ],
        "without": [
            _ORDERS,
            {"memory_query": {"memory_path": "${PATH_1}", "expression": "[?status=='open' && cents < `600`].order"}},
            lambda messages: _delete_each(json.loads(_results(messages)[-1])),
            "Deleted.",
        ],
        "direct": [_ORDERS, _delete_listed, "Deleted."],
    },
}
