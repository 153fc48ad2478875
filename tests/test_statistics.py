import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc

from torchdcls.training.statistics import Summary, holm, notes, pairwise_tests, summarize

runs = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=2, max_size=6)


def test_mean_and_standard_error_by_hand():
    # mean 5; deviations -3, -1, 4; their squares sum to 26; 26 / 2 = 13; sqrt(13 / 3)
    assert summarize([2.0, 4.0, 9.0]) == Summary(5.0, pytest.approx(math.sqrt(13 / 3)), 3)
    assert summarize([1.5]) == Summary(1.5, None, 1)
    with pytest.raises(ValueError, match="values must hold at least one number, got none"):
        summarize([])


def test_a_single_run_is_written_without_an_error():
    assert summarize([81.234]).format(2) == "81.23"
    assert summarize([81.0, 82.0]).format(2) == "81.50 ± 0.50"


def student_by_hand(a, b):
    """Pooled variance, and the tail of Student's distribution through the incomplete beta function."""
    a, b = (torch.tensor(x, dtype=torch.float64) for x in (a, b))
    freedom = len(a) + len(b) - 2
    pooled = ((a - a.mean()).square().sum() + (b - b.mean()).square().sum()) / freedom
    t = float((a.mean() - b.mean()) / (pooled * (1 / len(a) + 1 / len(b))).sqrt())
    return t, float(betainc(freedom / 2, 0.5, freedom / (freedom + t * t)))


@given(runs, runs)
def test_the_test_is_students_with_equal_variances(a, b):
    tests = pairwise_tests({"a": a, "b": b})
    if max(a) - min(a) < 0.1 and max(b) - min(b) < 0.1:
        return
    t, p = student_by_hand(a, b)
    assert (tests[0].t, tests[0].p) == (pytest.approx(t, rel=1e-6, abs=1e-9), pytest.approx(p, rel=1e-6, abs=1e-12))
    assert tests[0].difference == pytest.approx(summarize(a).mean - summarize(b).mean)


def test_with_unequal_counts_it_is_not_welchs_test():
    # by hand: means 2 and 6, sums of squares 2 and 20, pooled 22 / 5, t = -4 / sqrt(4.4 * (1/3 + 1/4))
    (test,) = pairwise_tests({"a": [1.0, 2.0, 3.0], "b": [3.0, 5.0, 7.0, 9.0]})
    assert test.t == pytest.approx(-4 / math.sqrt(4.4 * 7 / 12))


def test_every_pair_is_tested_once_but_those_without_a_variance():
    values = {"a": [1.0, 2.0], "b": [2.0, 4.0], "once": [3.0], "c": [0.0, 0.5], "flat": [1.0, 1.0], "level": [2.0, 2.0]}
    tested = [(test.first, test.second) for test in pairwise_tests(values)]
    several = [name for name in values if name != "once"]
    assert tested == [pair for pair in itertools.combinations(several, 2) if pair != ("flat", "level")]
    assert all(math.isfinite(test.t) and 0 <= test.p <= test.p_holm <= 1 for test in pairwise_tests(values))


def test_holms_correction_by_hand():
    # sorted 0.005, 0.02, 0.03, 0.5 times 4, 3, 2, 1 is 0.02, 0.06, 0.06, 0.5
    assert holm([0.03, 0.005, 0.5, 0.02]) == pytest.approx([0.06, 0.02, 0.5, 0.06])
    # 0.04 * 3 = 0.12, then 0.05 * 2 = 0.10 is lifted to 0.12, and so is 0.06
    assert holm([0.04, 0.05, 0.06]) == pytest.approx([0.12, 0.12, 0.12])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_notes_say_what_the_runs_cannot_show():
    (alone,) = notes({"stock": [1.0], "gauss": [1.0]})
    assert alone.startswith("stock, gauss: one run only, so no standard error and no test")
    few, many = notes({name: [1.0, 2.0] for name in ("stock", "bilinear", "triangle", "gauss")})
    assert few.startswith("With 2 runs of a variant a test finds large differences only")
    assert many.startswith("6 tests are made for each measure")
    assert "about 26%" in many, "1 - 0.95 ** 6"
    assert not notes({"stock": [1.0] * 5, "gauss": [2.0] * 5})
