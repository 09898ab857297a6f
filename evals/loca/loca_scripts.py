"""The oracle's scripts, by task and arm."""

from collections.abc import Callable, Mapping
from typing import Final

import loca_applications
import loca_bigquery
import loca_coursework
import loca_deadlines
import loca_exams
import loca_invoices
import loca_mails
import loca_market
import loca_materials
import loca_nhl
import loca_outlet
import loca_stock
from loca_arms import Arm
from loca_oracle import Script
from loca_search import with_search

Scripts = Mapping[Arm, Callable[[], Script]]

_WRITTEN: Final[Mapping[str, Scripts]] = {
    "ABTesting": {
        "direct": loca_bigquery.rates_direct,
        "mirror": loca_bigquery.rates_mirror,
        "scripts": loca_bigquery.rates_scripts,
    },
    "AcademicWarning": {
        "direct": loca_bigquery.warn_direct,
        "mirror": loca_bigquery.warn_mirror,
        "scripts": loca_bigquery.warn_scripts,
    },
    "MachineOperating": {
        "direct": loca_bigquery.machines_direct,
        "mirror": loca_bigquery.machines_mirror,
        "scripts": loca_bigquery.machines_scripts,
    },
    "CourseAssistant": {
        "direct": loca_mails.remind_direct,
        "mirror": loca_mails.remind_mirror,
        "scripts": loca_mails.remind_scripts,
    },
    "ExcelMarketResearch": {
        "direct": loca_market.research,
        "mirror": loca_market.research,
        "scripts": loca_market.research,
    },
    "FilterLowSellingProducts": {
        "direct": loca_outlet.direct,
        "mirror": loca_outlet.mirror,
        "scripts": loca_outlet.scripts,
    },
    "UpdateMaterialInventory": {
        "direct": loca_materials.direct,
        "mirror": loca_materials.mirror,
        "scripts": loca_materials.scripts,
    },
    "WoocommerceNewWelcome": {
        "direct": loca_mails.welcome_direct,
        "mirror": loca_mails.welcome_mirror,
        "scripts": loca_mails.welcome_scripts,
    },
    "NhlB2bAnalysis": {
        "direct": loca_nhl.direct,
        "ptc": loca_nhl.ptc,
        "mirror": loca_nhl.mirror,
        "scripts": loca_nhl.scripts,
    },
    "WoocommerceStockAlert": {
        "direct": loca_stock.direct,
        "mirror": loca_stock.mirror,
        "scripts": loca_stock.scripts,
    },
    "CanvasArrangeExam": {
        "direct": loca_exams.exams,
        "mirror": loca_exams.exams,
        "scripts": loca_exams.scripts,
    },
    "CanvasListTest": {
        "direct": loca_coursework.collect,
        "mirror": loca_coursework.collect,
        "scripts": loca_coursework.scripts,
    },
    "SetConfCrDdl": {
        "direct": loca_deadlines.direct,
        "mirror": loca_deadlines.mirror,
        "scripts": loca_deadlines.scripts,
    },
    "ApplyPhDEmail": {
        "direct": loca_applications.direct,
        "mirror": loca_applications.mirror,
        "scripts": loca_applications.scripts,
    },
    "PayableInvoiceChecker": {
        "direct": loca_invoices.read_all,
        "mirror": loca_invoices.read_all,
        "scripts": loca_invoices.scripts,
    },
}


def _search(script: Callable[[], Script]) -> Callable[[], Script]:
    return lambda: with_search(script())


SCRIPTS: Final[Mapping[str, Scripts]] = {
    task: {**scripts, "search": _search(scripts["scripts"])} for task, scripts in _WRITTEN.items()
}
