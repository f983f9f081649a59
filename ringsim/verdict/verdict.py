"""`Verdict`: the facts in a directory of results, and answers from them.

The template answers.j2 makes a `Finding` for each topic.
"""

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ringsim.calibration import MISFIT, ComparedCell, probe_noise
from ringsim.console import in_one_line
from ringsim.estimates import SURE_QUANTILES, Estimate
from ringsim.measurements import p95
from ringsim.network import Network
from ringsim.text_table import load_template
from ringsim.units import format_rate, format_size, format_time, plural
from ringsim.verdict.predictions import Forecast, Subject, find_subjects, make_forecast
from ringsim.verdict.records import NONE, JobReport, StrategyResult
from ringsim.verdict.run_directory import RunDirectory


class Topic(Enum):
    """The questions that a verdict answers, in their order."""

    BOUND = "What limits performance?"
    ALGORITHM = "Which algorithm should you use?"
    BUCKET = "Which bucket size should you use?"
    RANKS = "What happens with twice as many ranks?"
    RELIABILITY = "How reliable are these answers?"


@dataclass(frozen=True, slots=True)
class Finding:
    """An answer and its reasons, a sentence each; command: to run if data are missing."""

    topic: Topic
    answer: str
    reasons: tuple[str, ...] = ()
    command: str = ""


def findings_from(facts: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return the template's answers.

    In its text "# TOPIC" begins an answer, "- " a reason, and "$ " a command; other lines continue the previous one.
    """
    filters = {
        "percent": percent, "rounded": rounded, "interval": interval, "by_size": by_size,
        "size": format_size, "rate": format_rate, "plural": plural,
    }  # fmt: skip
    path = Path(__file__).with_name("answers.j2")  # names from files may contain line breaks
    answers = load_template(path, filters, finalize=lambda value: in_one_line(str(value)))
    sections = re.split(r"^# ", answers.render(facts), flags=re.MULTILINE)[1:]
    findings = []
    for section in sections:
        paragraphs = [" ".join(text.split()) for text in re.split(r"^(?=[-$] )", section, flags=re.MULTILINE)]
        topic, answer = paragraphs[0].split(" ", 1)
        reasons = tuple(text[2:] for text in paragraphs if text.startswith("- "))
        command = "".join(text[2:] for text in paragraphs if text.startswith("$ "))
        findings.append(Finding(Topic[topic], answer, reasons, command))
    return tuple(findings)


def percent(share: float) -> str:
    """Return a share such as 12 %; below one per cent with a digit."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.01 or abs(share) < 0.0005 else f"{100 * share:.1f} %"


def rounded(time_s: float) -> str:
    """Return a time with two digits."""
    return format_time(float(f"{time_s:.2g}"))


def interval(predicted: Estimate) -> str:
    """Return an estimate such as 2.1 ms (1.9 ms to 2.4 ms)."""
    low, high = rounded(predicted.low), rounded(predicted.high)
    return rounded(predicted.value) + (f" ({low} to {high})" if low != high else "")


def by_size(items: Iterable[Any], form: str) -> str:
    """Return the sizes of each name, for example: a up to 64 KiB, b from 256 KiB.

    items: with `size_bytes`, by size. form: of an item's name, such as "by {0.bound.value}".
    """
    runs = [(name, list(run)) for name, run in groupby(items, key=form.format)]
    starts = [f"{name} from {format_size(run[0].size_bytes)}" for name, run in runs[1:]]
    first, run = runs[0]
    return ", ".join([f"{first} up to {format_size(run[-1].size_bytes)}", *starts]) if starts else first


MEASURE = "ringsim measure --ranks 2 -o measured.json"
_RESAMPLED_STEPS = 1000
_SEED = 0


class Straggler(NamedTuple):
    """The rank for which the others wait in most strategies; waits_s: of a typical rank, by strategy."""

    rank: int
    waits_s: dict[str, float]
    typical_s: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of synchronisation in the shortest step of the strategy comparison.

    draws: strategies whose steps are not longer beyond their variation. free: training without synchronisation; its
    difference includes waits and the slowdown by communication. If it is None, only the synchronisation and a straggler
    are known.
    """

    best: StrategyResult
    draws: tuple[StrategyResult, ...]
    free: StrategyResult | None
    straggler: Straggler | None

    @property
    def waited_s(self) -> float:
        return self.straggler.waits_s.get(self.best.strategy, 0.0) if self.straggler else 0.0

    @property
    def cost_s(self) -> float:
        if self.free:
            return max(self.best.step_s - self.free.step_s, 0.0)
        return self.best.measured_sync_s + self.waited_s

    @property
    def share(self) -> float:
        return self.cost_s / self.best.step_s if self.best.step_s > 0 else 0.0


class Check(NamedTuple):
    """The errors of held-out predictions in a file; num_within_spread: those within the measured spread."""

    file: str
    kind: str
    median: float
    p95: float
    number: int
    num_within_spread: int


@dataclass(frozen=True)
class Verdict:
    """The facts from which answers follow; pages draw them.

    subjects: the first is the basis of the answers and of the forecast.
    """

    contents: RunDirectory
    subjects: tuple[Subject, ...] = ()
    forecast: Forecast | None = None

    @property
    def subject(self) -> Subject | None:
        return self.subjects[0] if self.forecast else None

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        contents, subject = self.contents, self.subject
        compared_networks = {compared.network for compared in contents.cells.values()}
        predicted = [step.network for step in contents.predicted.values()]
        predicted += [run.network for run in contents.simulated.values()]
        networks = dict.fromkeys(network for network in predicted if network != Network.UNIFORM)
        facts = {
            "contents": contents,
            "subject": subject,
            "forecast": self.forecast,
            "cost": step_cost(subject.job) if subject and subject.job else None,
            "noise": probe_noise(subject.measurements, subject.fit) if subject else None,
            "checks": list(_checks(self)),
            "misfit": MISFIT,
            "only_fitted": any(cell.used_in_calibration for _, cell in self.compared()),
            "sync_shares": _sync_shares(contents),
            "network": next(iter([*contents.networks, *networks]), ""),
            "unchecked": [] if subject else sorted(networks.keys() - compared_networks),
            "measure": MEASURE,
        }
        return findings_from(facts)

    def compared(self) -> Iterator[tuple[str, ComparedCell]]:
        """Yield each measured collective with its file, predicted from its probes or by `ringsim compare`."""
        predicted = {subject.file: subject.comparison.cases for subject in self.subjects if subject.comparison}
        for file, cases in predicted.items():
            yield from ((file, case.cell) for case in cases)
        for file, measurements in self.contents.measurements.items():
            for times in measurements.collectives if file not in predicted else ():
                (low_s, high_s), median_s = times.p10_p90_s, times.median_s
                yield file, ComparedCell(
                    collective=times.collective.value, algorithm=times.algorithm, size_bytes=times.size_bytes,
                    num_ranks=times.num_ranks, measured_s=median_s, spread=(high_s - low_s) / median_s,
                )  # fmt: skip
        for file, compared in self.contents.cells.items():
            yield from ((file, cell) for cell in compared.cells)

    def finding(self, topic: Topic) -> Finding:
        return next(finding for finding in self.findings if finding.topic is topic)


def judge(contents: RunDirectory) -> Verdict:
    """Return the verdict on a directory; subjects without a forecast are added to `contents.refused`."""
    subjects = find_subjects(contents)
    while subjects:
        try:
            return Verdict(contents, tuple(subjects), make_forecast(subjects[0]))
        except ValueError as error:
            contents.refused[subjects.pop(0).file] = in_one_line(str(error))
    return Verdict(contents)


def step_cost(job: JobReport) -> StepCost | None:
    """Return the cost of synchronisation; None if no strategy synchronises."""
    results = sorted(job.synchronising, key=lambda result: result.step_s)
    if not results:
        return None
    draws = tuple(result for result in results[1:] if not _is_slower(result, results[0]))
    free = next((result for result in job.strategies if result.strategy == NONE), None)
    return StepCost(results[0], draws, free, find_straggler(results))


def _is_slower(result: StrategyResult, best: StrategyResult) -> bool:
    """Return whether the median difference of interleaved steps is above zero in 97.5 % of the bootstrap."""
    if len(result.steps_s) != len(best.steps_s) or not result.steps_s:
        return True
    differences = np.array(result.steps_s) - np.array(best.steps_s)
    drawn = np.random.default_rng(_SEED).choice(differences, (_RESAMPLED_STEPS, len(differences)))
    return float(np.quantile(np.median(drawn, axis=1), SURE_QUANTILES[0])) > 0


def find_straggler(results: Sequence[StrategyResult]) -> Straggler | None:
    """Return the rank for which the others wait; None if there is none, or times of ranks are unknown.

    The last rank to arrive does not wait, and therefore has the shortest synchronisation. It is a straggler if it is
    the same rank in more than half of the strategies, and the others wait longer than the synchronisation varies (10th
    to 90th percentile).
    """
    known = [result for result in results if len(result.rank_sync_s) > 1 and result.sync_s]
    waits: dict[int, dict[str, float]] = {}
    for result in known:
        own_s = min(result.rank_sync_s)
        rank = result.rank_sync_s.index(own_s)
        others = (time_s for other, time_s in enumerate(result.rank_sync_s) if other != rank)
        wait_s = statistics.median(others) - own_s
        low_s, high_s = result.sync_p10_p90_s
        if wait_s > high_s - low_s:
            waits.setdefault(rank, {})[result.strategy] = wait_s
    rank, waits_s = max(waits.items(), key=lambda item: len(item[1]), default=(0, {}))
    is_one = len(waits_s) * 2 > len(known)
    return Straggler(rank, waits_s, statistics.median(waits_s.values())) if is_one else None


def _sync_shares(contents: RunDirectory) -> list[tuple[str, float]]:
    shares: dict[str, float] = {}
    for file, comparison in contents.comparisons.items():
        shares |= {f"{file}, {one.run.name}": one.run.sync_share for one in comparison.runs if one.run.num_ranks > 1}
    for folder, log in contents.logs.items():
        if known := [entry.sync_share for entry in log.entries if entry.sync_share is not None]:
            shares[folder] = known[-1]
    return sorted(shares.items(), key=lambda item: -item[1])


def _checks(verdict: Verdict) -> Iterator[Check]:
    known: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for file, cell in verdict.compared():
        if cell.error is not None and not cell.used_in_calibration:
            known.setdefault((file, "collectives"), []).append((abs(cell.error), cell.spread))
    for subject in verdict.subjects:
        for result in subject.job.synchronising if subject.job else ():
            if result.error is not None:
                known.setdefault((subject.file, "strategies"), []).append((abs(result.error), result.spread))
    for (file, kind), pairs in known.items():
        errors = [error for error, _ in pairs]
        num_within = sum(error <= spread for error, spread in pairs)
        yield Check(file, kind, statistics.median(errors), p95(errors), len(errors), num_within)
