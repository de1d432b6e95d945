"""The terms that pages explain: ``{% term "rank" %}`` shows one, and the glossary page has them all.

``docs/reference/glossary.md`` has the same terms with their meanings for developers (tests/architecture/test_glossary.py).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    title: str
    text: str


TERMS: dict[str, Term] = {
    "job": Term(
        "Job", "One run of your code with the GPUs and the time limit you asked for. It may need several attempts."
    ),
    "attempt": Term(
        "Attempt", "One execution of a job. A job that was preempted, or whose node was lost, gets another attempt."
    ),
    "rank": Term(
        "Rank",
        "One worker process of a job that trains with several: rank 3 of 4 is the fourth. Each usually has one GPU and its "
        "own log.",
    ),
    "epoch": Term("Epoch", "One pass through the training data."),
    "launcher": Term(
        "Launcher",
        "What starts your code. A plain command starts it once. torchrun and Horovod start one worker process per GPU and "
        "connect them; your code must be written for that.",
    ),
    "elastic": Term(
        "Elastic",
        "Runs on any number of GPUs between a minimum and a maximum. The number may change while it runs, without losing "
        "what it has learnt.",
    ),
    "node": Term("Node", "A machine of the lab that runs jobs."),
    "cpu-slot": Term(
        "CPU slot", "A share of the processors of a node without GPUs. Jobs use slots there as they use GPUs elsewhere."
    ),
    "environment": Term("Environment", "The Python version and the packages that a job runs with."),
    "checkpoint": Term(
        "Checkpoint",
        "Files in /checkpoints from which your code can continue after a stop. What it computed since the last checkpoint "
        "is lost when it is stopped.",
    ),
    "outputs": Term("Outputs", "Files that your code writes to /outputs. They are kept, and you can download them."),
    "time-limit": Term("Time limit", "The longest a job may run. Then it is stopped, finished or not."),
    "deadline": Term("Deadline", "When you need the result. Some scheduling policies start such jobs sooner."),
    "priority": Term(
        "Priority",
        "The order among your own jobs; some policies also use it between users. Above 0 a job uses more of your share: each "
        "GPU-hour counts twice at 1, three times at 2, and so on.",
    ),
    "tier": Term(
        "Tier",
        "Premium, standard or basic. Jobs of a higher tier start before those of a lower one; an admin decides who may use it.",
    ),
    "preemptible": Term(
        "Preemptible",
        "Uses GPUs only while others do not need them, and is stopped when they do. It starts sooner in return.",
    ),
    "hold": Term(
        "On hold", "A job on hold does not start, or is stopped, until it is released. It keeps its place in the queue."
    ),
    "policy": Term(
        "Scheduling policy", "The rule that decides which job gets which GPUs. An admin can change it while jobs run."
    ),
    "reservation": Term("Reservation", "GPUs that a user or a group has for itself for some time."),
    "cordoned": Term("Cordoned", "A node that accepts no new jobs. Jobs that run there keep running."),
    "draining": Term(
        "Draining",
        "A node that accepts no new jobs and whose jobs are stopped. They wait for another node, and continue from their "
        "checkpoint if they have one.",
    ),
    "quarantine": Term(
        "Quarantine",
        "A GPU in quarantine gets no new jobs: several failed on it, or an admin took it out. An admin can end that.",
    ),
    "driver": Term(
        "Driver",
        "The process that connects the ranks of an elastic job and starts them again when GPUs are added or removed. It "
        "needs no GPU.",
    ),
    "commit": Term(
        "Commit",
        "The moment at which elastic training stores its state in memory. It continues from there after a change.",
    ),
    "preempted": Term(
        "Preempted",
        "Stopped by the scheduler to make room for other jobs. The job is queued again and gets another attempt.",
    ),
    "k-sync": Term(
        "Adaptive k-sync",
        "Updates the model after the first k of n worker processes have sent their gradients. k grows or shrinks so that "
        "slow workers do not hold up the others.",
    ),
    "gpu-hour": Term("GPU-hour", "One GPU held for one hour, or two for half an hour."),
    "percentile": Term("95th percentile", "95 % of the values are below it."),
}
