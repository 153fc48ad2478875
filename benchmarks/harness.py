"""How everything is measured: contenders side by side, checked first, interleaved, medians of ratios."""

import csv
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

Run = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True)
class Comparison:
    """One problem, solved by several contenders; the first is the peer that the others are measured against.

    Attributes:
        problem: what is computed.
        contenders: name -> a function that computes it and returns everything that must agree.
        tolerance: largest allowed relative difference (norms) from the first contender.
        targets: contender -> how many times faster than the peer it must be, on a CPU.
        memory_targets: contender -> the largest share of the peer's additional peak memory.
        rates: contender -> (amount, unit): what it computes or moves, of which it reports how much a second.
        repeats: how often each is run; the median counts.
        seconds: stop repeating when a comparison has taken this long.
        memory: whether to measure memory as well.
    """

    problem: str
    contenders: dict[str, Run]
    tolerance: float = 1e-4
    targets: dict[str, float] = field(default_factory=dict)
    memory_targets: dict[str, float] = field(default_factory=dict)
    rates: dict[str, tuple[float, str]] = field(default_factory=dict)
    repeats: int = 7
    seconds: float = 20.0
    memory: bool = True


@dataclass(frozen=True)
class Row:
    """A line of the result: one contender on one problem."""

    case: str
    problem: str
    contender: str
    milliseconds: float
    times_faster: float
    megabytes: float
    target: str


_WARM_UP = 0.02  # seconds, one run at least

Case = Callable[[torch.device], Iterator[Comparison]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Register a generator of comparisons under its name."""
    CASES[function.__name__] = function
    return function


class WrongResultError(AssertionError):
    """Contenders disagree, so their times mean nothing."""


def measure(name: str, comparison: Comparison, device: torch.device, quick: bool = False) -> list[Row]:
    """Check that the contenders agree, then time them in turns; quick, to see that it works, once."""
    _check(name, comparison)
    if quick:
        comparison = replace(comparison, repeats=1, memory=False)
    times: dict[str, list[float]] = {contender: [] for contender in comparison.contenders}
    begin = time.perf_counter()
    for repeat in range(comparison.repeats):
        # In another order each time: nobody always follows the slowest, which leaves caches and threads cold.
        for contender in random.Random(repeat).sample(list(times), len(times)):
            times[contender].append(_seconds(comparison.contenders[contender], device))
        if repeat >= 2 and time.perf_counter() - begin > comparison.seconds:
            break
    memory = {
        contender: peak_memory(run, device) if comparison.memory else 0.0
        for contender, run in comparison.contenders.items()
    }
    peer = next(iter(times))
    rows = []
    for contender, seconds in times.items():
        ratio = statistics.median(p / s for p, s in zip(times[peer], seconds, strict=True))
        share = memory[contender] / memory[peer] if memory[peer] else 0.0
        verdicts = []
        if contender in comparison.targets and device.type == "cpu":
            target = comparison.targets[contender]
            verdicts.append(f">= {target:.3g}x: {'met' if ratio >= target else 'MISSED'}")
        if contender in comparison.memory_targets:
            target = comparison.memory_targets[contender]
            verdicts.append(f"memory <= {target:g}: {share:.3f} {'met' if share <= target else 'MISSED'}")
        if contender in comparison.rates:
            amount, unit = comparison.rates[contender]
            verdicts.append(f"{amount / statistics.median(seconds):.3g} {unit}")
        milliseconds = statistics.median(seconds) * 1e3
        rows.append(
            Row(
                name, comparison.problem, contender, milliseconds, ratio, memory[contender] / 2**20, "; ".join(verdicts)
            )
        )
    return rows


def _check(name: str, comparison: Comparison) -> None:
    results = {contender: run() for contender, run in comparison.contenders.items()}
    peer, expected = next(iter(results.items()))
    for contender, actual in results.items():
        if len(actual) != len(expected):
            raise WrongResultError(f"{name}, {comparison.problem}: {contender} returns {len(actual)} tensors")
        for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
            error = ((a.double() - e.double()).norm() / e.double().norm()).item()
            if not error <= comparison.tolerance:
                raise WrongResultError(
                    f"{name}, {comparison.problem}: result {index} of {contender} differs from {peer}'s by "
                    f"{error:.1e}, more than {comparison.tolerance:.0e}"
                )


def _seconds(run: Run, device: torch.device) -> float:
    """The median of three, after some that find caches, threads and allocator as the contender before left them.

    Of what takes over a second one run is enough: there the difference vanishes.
    """
    times: list[float] = []
    warm = 0
    while len(times) < warm + 3 and sum(times) < 1:
        _synchronize(device)
        begin = time.perf_counter()
        run()
        _synchronize(device)
        times.append(time.perf_counter() - begin)
        if sum(times) < _WARM_UP or not warm:
            warm = len(times)
    return statistics.median(times[warm:] or times)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(run: Run, device: torch.device) -> float:
    """The most bytes that ``run`` holds at once on top of what was there before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    kineto = profiler.profiler.kineto_results
    events = sorted((e for e in kineto.events() if e.name() == "[memory]"), key=lambda e: e.start_ns())
    held = peak = 0
    for event in events:
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def hardware(device: torch.device) -> str:
    """The machine in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"{model}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def write_csv(rows: Sequence[Row], path: Path, device: torch.device) -> None:
    """Write rows, each with the hardware and the versions that they were measured with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        columns = [*Row.__dataclass_fields__, "hardware", "torch", "python", "date"]
        writer.writerow(columns)
        suffix = [hardware(device), torch.__version__, platform.python_version(), time.strftime("%Y-%m-%d")]
        for row in rows:
            values = [
                f"{v:.4g}" if isinstance(v, float) else v for v in (getattr(row, f) for f in Row.__dataclass_fields__)
            ]
            writer.writerow([*values, *suffix])


def table(rows: Sequence[Row]) -> str:
    """Rows as aligned text."""
    cells = [("problem", "contender", "ms", "times faster", "peak MB", "target")]
    cells += [
        (r.problem, r.contender, f"{r.milliseconds:.3g}", f"{r.times_faster:.2f}", f"{r.megabytes:.1f}", r.target)
        for r in rows
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if 2 <= i <= 4 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
