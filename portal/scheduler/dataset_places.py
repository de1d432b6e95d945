"""Which datasets the active jobs read, and which nodes have them already."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from portal.cluster.models import Node
from portal.cluster.pools import Pool
from portal.jobs.models import Job, JobDataset
from portal.scheduler.holdings import active_jobs
from portal.storage.node_caches import CACHED_FACT, hashes_of, read_cached


@dataclass(frozen=True)
class DatasetReads:
    """The datasets that active jobs read: bytes by the hash of the manifest, by job. Two queries, however many there are."""

    by_job: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    cached: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """The hashes that each node has."""

    @classmethod
    def read(cls) -> Self:
        by_job: dict[int, dict[str, int]] = defaultdict(dict)
        rows = JobDataset.objects.filter(job__in=active_jobs().order_by().values("pk")).order_by()
        for job, sha256, size in rows.values_list("job", "version__sha256", "version__size"):
            by_job[job][sha256] = size
        return cls(by_job, read_cached() if by_job else {})

    def cached_bytes(self, job: int, pools: Mapping[int, Sequence[Pool]]) -> dict[str, int]:
        """Return the bytes that nodes have of a job's datasets, by the name that policies know a node by."""
        reads = self.by_job.get(job)
        if not reads:
            return {}
        found = {}
        for node, hashes in self.cached.items():
            if here := sum(size for sha256, size in reads.items() if sha256 in hashes):
                found.update({pool.id: here for pool in pools.get(node, ())})
        return dict(sorted(found.items()))


def names_with_all_of(job: Job, nodes: Sequence[Node]) -> list[str]:
    """Return the names of those nodes that have all datasets of a job already; none for a job that reads none."""
    needed = set(job.datasets.values_list("version__sha256", flat=True))
    if not needed:
        return []
    return [node.name for node in nodes if needed <= hashes_of(node.facts.get(CACHED_FACT))]
