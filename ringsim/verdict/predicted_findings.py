"""The answers for a directory without probes, from predictions for a network and from training runs."""

from ringsim.analysis import Sweep
from ringsim.units import format_size, plural
from ringsim.verdict.finding import HALF, Finding, Topic, by_size, percent, roughly
from ringsim.verdict.records import UNIFORM, DdpPrediction
from ringsim.verdict.run_directory import RunDirectory

MEASURE = "ringsim measure --ranks 2 -o measured.json"
TRAIN = "torchrun --nproc-per-node 2 -m trainers compare-strategies --output report"
_UNKNOWN = "Not known: no file here contains the necessary data."
_MIB = 2**20


def findings_without_probes(contents: RunDirectory) -> tuple[Finding, ...]:
    """Return the answers but for how sure they are, each with the command that would give it where it is not known."""
    return _bound(contents), _algorithm(contents), _bucket(contents), _ranks(contents)


def _bound(contents: RunDirectory) -> Finding:
    """Say how much of their time training runs spend on exposed communication, by their logs; else by predictions."""
    shares = {}
    for folder, log in contents.logs.items():
        known = [entry.sync_share for entry in log.entries if entry.sync_share is not None]
        if known:
            shares[folder] = known[-1]
    for file, comparison in contents.comparisons.items():
        shares |= {f"{file}, {run.name}": run.sync_share for run in comparison.runs if run.num_ranks > 1}
    if not shares and any(job.num_ranks == 1 for job in contents.jobs.values()):
        return Finding(Topic.BOUND, "Computation: a single rank does not communicate.", (), TRAIN)
    if not shares:
        return _predicted_bound(contents)
    name, share = max(shares.items(), key=lambda item: item[1])
    spends = f"{percent(share)} of its time on synchronisation and waiting for other ranks"
    if share < HALF:
        answer = f"Computation: even {name}, the run with the most communication, spends only {spends}."
    else:
        answer = f"Synchronisation: {name} spends {spends}. Measure probes to find out what limits it."
    return Finding(Topic.BOUND, answer, (f"From the logs of {plural(len(shares), 'run')}.",), MEASURE)


def _predicted_bound(contents: RunDirectory) -> Finding:
    """Say what bounds the predicted step, and the simulated collectives."""
    reasons = []
    for file, run in contents.simulated.items():
        if run.time_s and run.path_s:
            most = max(run.path_s, key=lambda name: run.path_s[name])
            used = f"; the busiest resource is {run.bottleneck}" if run.bottleneck else ""
            reasons.append(
                f"{file}: {run.collective.value} {run.algorithm} of {format_size(run.size_bytes)} on {run.num_ranks} "
                f"ranks of {run.network} takes {roughly(run.time_s)}, mostly {most}{used}."
            )
    for file, prediction in contents.predicted.items():
        step = prediction.step
        if step.step_s and step.exposed_s is not None:
            share = step.exposed_s / step.step_s
            bound = "compute-bound" if share < HALF else "communication-bound"
            answer = (
                f"A training step on {step.num_ranks} ranks of {prediction.network} is predicted to be {bound}: "
                f"{roughly(step.exposed_s)} of {roughly(step.step_s)} ({percent(share)}) is exposed communication."
            )
            return Finding(Topic.BOUND, answer, (f"Predicted by ringsim ddp, in {file}.", *reasons))
    if reasons:
        return Finding(Topic.BOUND, f"For the simulated collectives only: {reasons[0]}", tuple(reasons[1:]))
    return Finding(Topic.BOUND, _UNKNOWN, (), _ddp(contents) or MEASURE)


def _algorithm(contents: RunDirectory) -> Finding:
    """Name the fastest algorithms of the sweeps, which are of some network, not of this machine's."""
    reasons = [reason for file, sweep in contents.sweeps.items() for reason in _winners(file, sweep)]
    command = _sweep(contents) or MEASURE
    if not reasons:
        return Finding(Topic.ALGORITHM, _UNKNOWN, (), command)
    answer = "The fastest algorithms on the networks of the sweeps are listed below. Your network may differ."
    return Finding(Topic.ALGORITHM, answer, tuple(reasons), command)


def _winners(file: str, sweep: Sweep) -> list[str]:
    """Return a sentence for each network."""
    winners, most, reasons = sweep.winners(), max(sweep.ranks), []
    for network in sweep.networks:
        words = [
            (size, f"`{winners[network, most, size].cell.algorithm}`")
            for size in sweep.sizes_bytes
            if (network, most, size) in winners
        ]
        if words:
            sizes = f"{format_size(words[0][0])} to {format_size(words[-1][0])}"
            reasons.append(f"{file}: on {network} with {most} ranks, {sizes}: {by_size(words)}.")
    return reasons


def _bucket(contents: RunDirectory) -> Finding:
    for file, prediction in contents.predicted.items():
        steps = [step for step in prediction.sweep if step.step_s]
        if steps:
            best = min(steps, key=lambda step: step.step_s or 0.0)
            own = prediction.default_step_s
            than = f" instead of {roughly(own)} with torch's default caps" if own else ""
            answer = (
                f"Set bucket_cap_mb to {best.cap_bytes / _MIB:g} on {prediction.network}: a step is predicted to take "
                f"{roughly(best.step_s or 0.0)}{than}."
            )
            return Finding(Topic.BUCKET, answer, (f"The shortest of the steps predicted by ringsim ddp, in {file}.",))
    return Finding(Topic.BUCKET, _UNKNOWN, (), _ddp(contents, "--bucket-cap-mb 1:256") or TRAIN)


def _ranks(contents: RunDirectory) -> Finding:
    for file, prediction in contents.predicted.items():
        twice = _twice(prediction)
        if twice:
            answer = (
                f"On {2 * prediction.step.num_ranks} ranks of {prediction.network} a step with DDP would take "
                f"{roughly(twice)} instead of {roughly(prediction.step.step_s or 0.0)}."
            )
            return Finding(Topic.RANKS, answer, (f"Predicted by ringsim ddp, in {file}.",))
    ranks = max((prediction.step.num_ranks for prediction in contents.predicted.values()), default=2)
    return Finding(Topic.RANKS, _UNKNOWN, (), _ddp(contents, f"--scaling {ranks}:{2 * ranks}") or MEASURE)


def _twice(prediction: DdpPrediction) -> float | None:
    """Return the predicted step on twice the ranks."""
    num_ranks = 2 * prediction.step.num_ranks
    return next((step.step_s for step in prediction.scaling if step.num_ranks == num_ranks), None)


def _ddp(contents: RunDirectory, option: str = "") -> str:
    """Return the prediction of a step on the network that is here; "" if there is none."""
    ranks = max((prediction.step.num_ranks for prediction in contents.predicted.values()), default=8)
    command = f"ringsim ddp --layers LAYERS.toml --network {_network(contents)} --ranks {ranks} {option}".rstrip()
    return f"{command} --json" if _network(contents) else ""


def _sweep(contents: RunDirectory) -> str:
    ranks = max((run.num_ranks for run in contents.simulated.values()), default=8)
    return f"ringsim sweep --network {_network(contents)} --ranks {ranks} --csv sweep.csv" if _network(contents) else ""


def _network(contents: RunDirectory) -> str:
    """Return the file, or else the name, of a network that the directory is about."""
    of_steps = (prediction.network for prediction in contents.predicted.values())
    of_collectives = (run.network for run in contents.simulated.values())
    names = (name for name in (*of_steps, *of_collectives) if name != UNIFORM)
    return next(iter([*contents.networks, *names]), "")
