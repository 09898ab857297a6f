"""Whether two samples of times differ."""


def mann_whitney(one: list[float], other: list[float]) -> float:
    """Return the normal deviate of U; ties are too few to matter."""
    ranked = sorted([(value, 0) for value in one] + [(value, 1) for value in other])
    ranks = sum(rank for rank, (_, of) in enumerate(ranked, 1) if of == 0)
    n, m = len(one), len(other)
    u = ranks - n * (n + 1) / 2
    return float((u - n * m / 2) / (n * m * (n + m + 1) / 12) ** 0.5)
