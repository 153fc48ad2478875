"""Means, standard errors and Student's t-tests over the runs of a comparison."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """A value over the runs of one variant.

    Attributes:
        mean: over the runs.
        error: the standard error of the mean, None for a single run.
        count: of runs.
    """

    mean: float
    error: float | None
    count: int

    @property
    def deviation(self) -> float:
        """The sample standard deviation; 0 for a single run."""
        return (self.error or 0.0) * math.sqrt(self.count)

    def format(self, digits: int) -> str:
        """The mean and, where there is one, its standard error.

        >>> summarize([1.0, 2.0, 4.0]).format(digits=2)
        '2.33 ± 0.88'
        """
        error = "" if self.error is None else f" ± {self.error:.{digits}f}"
        return f"{self.mean:.{digits}f}{error}"


def summarize(values: Sequence[float]) -> Summary:
    """Mean and standard error ``s / √n``, with the sample standard deviation ``s`` (divided by ``n - 1``).

    >>> summarize([1.0, 3.0])
    Summary(mean=2.0, error=1.0, count=2)
    """
    count = len(values)
    if not count:
        raise ValueError("values must hold at least one number, got none")
    mean = math.fsum(values) / count
    if count == 1:
        return Summary(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Summary(mean, math.sqrt(variance / count), count)


@dataclass(frozen=True)
class Difference:
    """Student's t-test of whether two variants have one mean.

    Attributes:
        first, second: the variants.
        difference: mean of the first minus mean of the second.
        t: the statistic.
        p: how likely a statistic of at least this size is, on either side, if the means are equal.
        p_holm: ``p`` corrected by Holm for all the tests that were made with it.
    """

    first: str
    second: str
    difference: float
    t: float
    p: float
    p_holm: float


def pairwise_tests(values: Mapping[str, Sequence[float]]) -> list[Difference]:
    """Independent two-sample t-tests that assume equal variances, as in the paper, for each pair of variants.

    A variant with one run has no variance and takes no part; neither does a pair in which no run differs from
    the others of its variant, where the statistic is infinite or has no value.

    >>> (test,) = pairwise_tests({"stock": [1.0, 2.0, 3.0], "gauss": [0.0, 1.0, 2.0], "once": [1.0]})
    >>> test.first, test.second, round(test.t, 4), round(test.p, 4)
    ('stock', 'gauss', 1.2247, 0.2879)
    """
    from scipy.stats import ttest_ind_from_stats  # takes a second to import

    summaries = {name: summarize(runs) for name, runs in values.items() if len(runs) > 1}
    pairs = [pair for pair in itertools.combinations(summaries, 2) if any(summaries[name].error for name in pair)]
    results = []
    for pair in pairs:
        given = ((each.mean, each.deviation, each.count) for each in map(summaries.__getitem__, pair))
        results.append(ttest_ind_from_stats(*itertools.chain(*given), equal_var=True))
    corrected = holm([float(result.pvalue) for result in results])
    return [
        Difference(*pair, summaries[pair[0]].mean - summaries[pair[1]].mean, float(result[0]), float(result[1]), p)
        for pair, result, p in zip(pairs, results, corrected, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: with it, the chance that any of the tests finds a difference that is not there is p.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def notes(values: Mapping[str, Sequence[float]]) -> list[str]:
    """What a reader of the p-values must know about them, a sentence each."""
    single = [name for name, runs in values.items() if len(runs) < 2]
    counts = [len(runs) for runs in values.values() if len(runs) > 1]
    tested = len(counts) * (len(counts) - 1) // 2
    sentences = []
    if single:
        sentences.append(
            f"{', '.join(single)}: one run only, so no standard error and no test. A test needs two seeds or more."
        )
    if tested and min(counts) < 5:
        sentences.append(
            f"With {min(counts)} runs of a variant a test finds large differences only: a large p-value does not say "
            "that there is no difference, and a standard error is itself a rough estimate."
        )
    if tested > 1:
        chance = 100 * (1 - 0.95**tested)
        sentences.append(
            f"{tested} tests are made for each measure. If nothing differed, the chance that some p falls below 0.05 "
            f"would still be about {chance:.0f}% were the tests independent; the column p (Holm) is corrected for that."
        )
    return sentences
