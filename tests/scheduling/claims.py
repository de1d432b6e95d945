"""The claim of each kind of reason, checked against the snapshot and the plan of the reason."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from portal.sentences import sentence_of
from portal.sentences.words import amount, duration
from scheduling import tiers
from scheduling.toolkit import resources
from scheduling.toolkit.capacity import Capacity, Scope
from scheduling.toolkit.reasons import rounded_seconds
from scheduling.types import Job, Limit, NodeId, Plan, Snapshot

GPUS = r"(\d+) GPUs?"


@dataclass(frozen=True)
class Facts:
    """A snapshot and its plan."""

    snapshot: Snapshot
    plan: Plan

    @cached_property
    def capacity(self) -> Capacity:
        return Capacity(self.snapshot)

    @cached_property
    def left_out(self) -> list[Job]:
        """Jobs that wait before and after the plan."""
        return [job for job in self.snapshot.jobs if job.waiting and not self.plan.target.get(job.id)]

    @cached_property
    def free_before(self) -> Mapping[NodeId, int]:
        return {node.id: node.free for node in self.snapshot.nodes if node.open}

    @cached_property
    def free_after(self) -> Mapping[NodeId, int]:
        given: Counter[NodeId] = Counter()
        for job in self.snapshot.jobs:
            for node, gpus in self.plan.target.get(job.id, {}).items():
                given[node] += max(0, gpus - job.now_on.get(node, 0))
        return {node: free - given[node] for node, free in self.free_before.items()}

    @cached_property
    def asked_back(self) -> Mapping[str, int]:
        """GPUs that the plan asks each job to release."""
        return {
            job.id: sum(max(0, n - self.plan.target.get(job.id, {}).get(node, 0)) for node, n in job.now_on.items())
            for job in self.snapshot.jobs
            if job.running
        }

    @property
    def coming(self) -> int:
        return sum(node.leaving for node in self.snapshot.nodes) + sum(self.asked_back.values())

    def scope(self, job: Job) -> Scope:
        return self.capacity.scope(job)

    def here(self, free: Mapping[NodeId, int], job: Job) -> int:
        return sum(free[node.id] for node in self.scope(job).nodes)

    def limit(self, name: str, job: Job) -> Limit:
        return next(limit for limit in self.snapshot.limits if limit.name == name and job.id in limit.jobs)


Claim = Callable[[Facts, Job, re.Match[str]], bool]


def _ahead(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    return int(match[1]) < len(facts.left_out)


def _too_few(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    """The number of free GPUs is the one before lower layers take theirs, or more, which are then not for the job."""
    needs, free = int(match[1]), int(match[2])
    enough = match[3] or free >= facts.here(facts.free_after, job)
    return needs == job.min_gpus > free and bool(enough) and free <= facts.here(facts.free_before, job)


def _none_free(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    """The reason names the nodes that the job can run on where they are not all."""
    scope = facts.scope(job)
    kept = "kept" in match[3]
    return (
        int(match[1] or 1) == scope.total
        and bool(match[2]) == (scope.allowed is not None)
        and (kept or facts.here(facts.free_after, job) == 0)
    )


def _not_yet(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    return job.min_gpus <= int(match[1]) <= facts.here(facts.free_before, job)


def _too_scattered(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    group = int(match[2])
    there = [facts.free_before[node.id] for node in facts.scope(job).nodes if node.name == match[3]]
    return int(match[1]) == job.min_gpus > group and bool(there) and group <= there[0]


def _short_of_resource(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    """The node has free GPUs, but with what is left there the job does not fit."""
    gpus, needed, each, name, free, left = match.groups()
    node = next(node for node in facts.scope(job).nodes if node.name == name)
    index = 1 if "memory" in needed else 0
    demand = resources.demand_of(job)[index] or resources.share_of(node)[index]
    before = node.free * resources.share_of(node)[index] + resources.extra_of(node)[index]
    return (
        int(gpus) == job.min_gpus
        and bool(each) == (job.min_gpus > 1)
        and needed == amount(resources.RESOURCES[index], demand)
        and int(free) <= facts.free_before[node.id]
        and _amount(left) <= max(0, before)
        and (job.spread or _amount(left) < demand * job.min_gpus)
    )


def _amount(text: str) -> float:
    """Return MiB, or thousandths of a processor."""
    number, unit, *_ = text.split()
    return float(number) * {"GiB": 1024, "MiB": 1}.get(unit, 1000)


def _too_much_per_gpu(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    """The job fits on no empty nodes as it is, but does with the amount that is proposed."""
    index = 1 if "memory" in match[1] else 0
    demand = list(resources.demand_of(job))
    rooms = [resources.Room(node, node.total) for node in facts.scope(job).nodes]
    if match[1] != amount(resources.RESOURCES[index], demand[index] or 0):
        return False
    if resources.fits(job, rooms, resources.Demand(*demand)):
        return False
    demand[index] = 1 if match[2] == "less" else int(_amount(match[2].removeprefix("at most ")))
    return resources.fits(job, rooms, resources.Demand(*demand)) == (match[2] != "less")


def _first_needs(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    return any(other.min_gpus == int(match[1]) for other in facts.left_out if other is not job)


def _promised(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    """The GPUs are being released by jobs that hold them or, where a limit is the cause, by those under the same limit."""
    under = max((limit.leaving for limit in facts.snapshot.limits if job.id in limit.jobs), default=0)
    return 1 <= int(match[1]) <= facts.coming + under


def _limit_reached(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    limit = facts.limit(match[2], job)
    members = [other for other in facts.snapshot.jobs if other.id in limit.jobs and not other.stopping]
    sizes = [(other.gpus, sum(facts.plan.target.get(other.id, {}).values())) for other in members]
    minimum = limit.elsewhere + sum(min(each) for each in sizes)
    maximum = limit.elsewhere + limit.leaving + sum(max(each) for each in sizes)
    held = int(match[3])
    return (
        (int(match[1]), int(match[5])) == (limit.max_gpus, job.min_gpus)
        and held + job.min_gpus > limit.max_gpus
        and minimum <= held
        and bool(held <= maximum or match[4])
    )


def _limit_too_low(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    limit = facts.limit(match[2], job)
    return int(match[1]) == job.min_gpus > limit.max_gpus == int(match[3])


def _too_large(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    maximum = facts.scope(job).max_gpus(job)
    return int(match[1]) == job.min_gpus > maximum == int(match[3]) and job.spread == (match[2] == "at once")


def _no_node(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    return not facts.capacity.nodes


def _none_of_its_nodes(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    return bool(facts.capacity.nodes) and not facts.scope(job).nodes


def _higher_tier_waits(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    layer_of = tiers.layer_by_job(facts.snapshot)
    higher = tiers.LAYERS.index(match[1]) < tiers.LAYERS.index(layer_of[job.id])
    return higher and any(layer_of[other.id] == match[1] for other in facts.left_out)


def _had(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    return f"{job.served_gpu_seconds / 3600:.1f}" == match[1]


def _work_left(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    return job.work is not None and duration(rounded_seconds(max(job.work.value, 1.0))) == match[1]


def _served(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    return duration(rounded_seconds(job.served_gpu_seconds)) == match[1]


def _account_has(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    theirs = [other for other in facts.snapshot.jobs if other.owner == match[1] == job.owner]
    return bool(theirs) and sum(other.gpus for other in theirs) == int(match[2])


def _booked(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    return any(sum(where.values()) == int(match[1]) for _, _, where in _book(facts).get(job.id, ()))


def _declined(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    return float(match[1]) <= float(match[2]) and job.id not in _book(facts)


def _not_booked(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    return job.id not in _book(facts)


def _book(facts: Facts) -> Mapping[str, list[tuple[int, int, Mapping[NodeId, int]]]]:
    """Return the bookings of all layers."""
    state = facts.plan.state
    layers = [state, *state.get(tiers.OTHER_LAYERS_KEY, {}).values()]
    return {job: runs for layer in layers for job, runs in layer.get("book", {}).items()}


def _saved(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    return job.min_gpus <= int(match[1]) <= job.max_gpus and int(match[2]) <= int(match[1])


def _anything(facts: Facts, job: Job, match: re.Match[str]) -> bool:
    """Accept an estimate of the policy, which cannot be compared with anything."""
    return True


CLAIMS: Mapping[str, Claim] = {
    r"(\d+) jobs? (?:is|are) ahead of it": _ahead,
    rf"it needs {GPUS} at once and only (\d+) (?:is|are) free( for it)?": _too_few,
    r"(?:the only GPU|all (\d+) GPUs)( of the nodes it can run on)? (?:is|are) (in use(?: or kept for jobs ahead of it)?)": _none_free,
    rf"under this policy it does not start yet, though {GPUS} (?:is|are) free(?: for it)?": _not_yet,
    rf"it needs {GPUS} at once; the largest group of free ones is (\d+), on node ([\w-]+)": _too_scattered,
    rf"it needs {GPUS} with (.+?)( each)?; node ([\w-]+) has {GPUS} free, but only (.+?) left(?=[.;]? |\.$)": _short_of_resource,
    r"It asks for (.+?) per GPU, which no node can give it for all its GPUs: ask for (less|at most [^;]+?)(?=\. |\.$)": _too_much_per_gpu,
    rf"jobs start strictly in order; the first waits for {GPUS}": _first_needs,
    rf"starting now it could hold up the first, which waits for {GPUS}(?:, expected in about \d+ min)?": _first_needs,
    rf"{GPUS} (?:is|are) being given back by other jobs; then it starts": _promised,
    rf"The limit of {GPUS} for (.+) is reached: (\d+) (?:is|are) in use( or promised)? and it needs (\d+)": _limit_reached,
    rf"It needs {GPUS}, but the limit for (.+) is (\d+): submit it with fewer, or ask an admin": _limit_too_low,
    rf"It needs {GPUS} (at once|on one node), but the (?:nodes it can run on have|largest node it can run on has) only (\d+)": _too_large,
    r"No node is open for new work now: all are lost, drained or not approved yet": _no_node,
    r"None of the nodes it can run on is open for new work now": _none_of_its_nodes,
    r"Jobs of the (\w+) tier are ahead of it, and jobs start strictly in order": _higher_tier_waits,
    r"Its environment is not ready": lambda facts, job, match: bool(job.blocked),
    r"it has had ([\d.]+) GPU-hours, and jobs that had fewer go first": _had,
    r"it has about (\d+ \w+) of work left on one GPU, and shorter jobs go first": _work_left,
    r"how long it takes is not known, it had (\d+ \w+) of one GPU so far, and those who had less go first": _served,
    rf"(\w+) has {GPUS} now and had [\d.]+ on average recently, with a fair share of [\d.]+": _account_has,
    r"even with its share of [\d.]+ GPUs from now on it takes [\w.]+ times as long as if it had had that from the start, "
    r"and who is worse off goes first": _anything,
    rf"It has booked {GPUS} from the slot that begins in about \d+ \w+": _booked,
    rf"It has booked {GPUS} for now, but others have not given them back yet": _booked,
    r"Not yet worth its price: its result is worth ([\d.e+-]+) and the cheapest GPUs for it cost ([\d.e+-]+), a payoff of "
    r"[\d.e+-]+; it bids again in each slot of \d+ \w+": _declined,
    r"In the next \d+ \w+ no GPUs it could use are left to book; it bids again in the next slot": _not_booked,
    r"It has not bid yet": _not_booked,
    rf"It has waited for \d+ \w+ and needs {GPUS} at once, so GPUs are saved for it as they come free: (\d+) of \d+ so far": _saved,
    rf"{GPUS} (?:is|are) being saved for a job that has waited too long, and too few others are free": _anything,
}
BETWEEN = re.compile(r"[\s.;:]|\band\b")


def false_claims(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Return the claims of a plan's reasons that are not true, and the texts without a known claim."""
    facts, found = Facts(snapshot, plan), []
    jobs = {job.id: job for job in snapshot.jobs}
    for id, message in plan.reasons.items():
        reason = sentence_of(message.data())
        rest = reason
        for pattern, holds in CLAIMS.items():
            for match in re.finditer(pattern, reason, re.IGNORECASE):
                rest = rest.replace(match[0], " ")
                if not holds(facts, jobs[id], match):
                    found.append(f"job {id}: {match[0]!r} in {reason!r}")
        if BETWEEN.sub("", rest):
            found.append(f"job {id}: nothing is known of {rest.strip()!r} in {reason!r}")
    return found
