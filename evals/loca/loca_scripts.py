"""The oracle's scripts, by task and arm."""

from collections.abc import Callable, Mapping
from typing import Final

import loca_nhl
import loca_stock
from loca_arms import Arm
from loca_oracle import Script

Scripts = Mapping[Arm, Callable[[], Script]]

SCRIPTS: Final[Mapping[str, Scripts]] = {
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
