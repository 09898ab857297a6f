"""The same examples on every run, few enough to be run often."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "core", derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("core")
