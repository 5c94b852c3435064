"""Pearson's goodness-of-fit test, enough of it to do without SciPy."""

import math
from collections.abc import Hashable, Mapping


def p_value(observed: Mapping[Hashable, int], expected: Mapping[Hashable, float]) -> float:
    """The chance of a fit at least this bad if the counts were drawn from `expected`; outcomes under 5 are pooled."""
    total = sum(observed.values())
    if set(observed) - {outcome for outcome, share in expected.items() if share > 0}:
        return 0.0
    rare = [outcome for outcome, share in expected.items() if share * total < 5]
    cells = [(observed.get(key, 0), share * total) for key, share in expected.items() if key not in set(rare)]
    cells.append((sum(observed.get(key, 0) for key in rare), sum(expected[key] for key in rare) * total))
    cells = [(seen, mean) for seen, mean in cells if mean > 1e-9]
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    return upper_gamma((len(cells) - 1) / 2, statistic / 2)


def upper_gamma(a: float, x: float) -> float:
    """The regularised upper incomplete gamma function Q(a, x): a series below a + 1, a continued fraction above."""
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        for n in range(1, 1000):
            term *= x / (a + n)
            total += term
        return max(0.0, 1 - scale * total)
    b, c = x + 1 - a, 1e300
    d = fraction = 1 / b
    for n in range(1, 1000):
        factor = -n * (n - a)
        b += 2
        d, c = 1 / (factor * d + b), b + factor / c
        fraction *= d * c
    return scale * fraction
