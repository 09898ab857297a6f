"""Runs `raw_behaviours.py`. As a module, that is compiled once, and not at each of the many starts of this upstream."""

from raw_behaviours import run  # type: ignore[import-not-found]  # in the folder of this script

run()
