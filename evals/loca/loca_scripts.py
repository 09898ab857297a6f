"""The oracle's scripts, by task and arm."""

from collections.abc import Callable, Mapping
from typing import Final

import loca_bigquery
import loca_mails
import loca_market
import loca_materials
import loca_nhl
import loca_outlet
import loca_stock
from loca_arms import Arm
from loca_oracle import Script

Scripts = Mapping[Arm, Callable[[], Script]]

SCRIPTS: Final[Mapping[str, Scripts]] = {
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
}
