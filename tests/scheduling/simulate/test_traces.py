"""Workloads from files."""

from pathlib import Path

import pytest

from scheduling.simulate import Plain, Submission, compare, plot, traces
from scheduling.types import ANY_GPU, GpuRequest

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:00:00,66.0,1,66.0,red
2017-10-09 06:59:00,100.0,4,400.0,blue
2017-10-09 06:59:00,100.0,0,0,blue
"""
PROTOTYPE = """job,framework,required_gpus,submitted_s,started_s,completed_s,node,gpu_indices,migrations
1,PyTorch,1,0,5,205,gpu3,0,0
2,PyTorch,1,1,5,225,gpu3,0,0
3,PyTorch,3,2,10,80,gpu4,"0,1,2",0
"""


def read(folder: Path, text: str, **more: object) -> list[Submission]:
    (folder / "trace").write_text(text)
    return traces.read(folder / "trace", **more)  # type: ignore[arg-type]


def plain(item: Submission) -> Plain:
    assert isinstance(item.truth, Plain)
    return item.truth


def test_philly_counts_from_its_first_job_and_skips_those_without_gpus(tmp_path: Path) -> None:
    one, four = read(tmp_path, PHILLY)
    assert (one.job.submitted_at, four.job.submitted_at) == (60, 0)
    assert (four.job.min_gpus, four.job.max_gpus, four.job.owner) == (4, 4, "blue")
    assert four.truth.seconds_alone(four.job, 4) == pytest.approx(100)


def test_elastic_jobs_of_a_trace_that_knows_no_range(tmp_path: Path) -> None:
    job = read(tmp_path, PHILLY, mode="fixed")[1].job
    assert (job.min_gpus, job.max_gpus, job.asked, job.elastic) == (1, 16, 4, True)


def test_the_prototypes_jobs_last_as_long_as_their_kind_did_on_average(tmp_path: Path) -> None:
    one, other, three = read(tmp_path, PROTOTYPE)
    assert plain(one).work == plain(other).work == pytest.approx(210)
    assert three.truth.seconds_alone(three.job, 3) == pytest.approx(70)
    # Two GPUs were never seen: half-way between one and three, in jobs per second.
    assert three.truth.seconds_alone(three.job, 2) == pytest.approx(2 / (1 / 210 + 1 / 70))


def test_our_own_format_as_csv_and_as_json(tmp_path: Path) -> None:
    (one,) = read(
        tmp_path,
        "id,submitted,seconds,gpus,owner,min_gpus,max_gpus,tier,preemptible,checkpoint_seconds\n"
        "x,2026-11-01T00:00:00,60,2,alice,1,4,premium,yes,30\n",
    )
    assert (one.job.submitted_at, one.job.owner, one.job.tier) == (1793491200.0, "alice", "premium")
    assert (one.job.min_gpus, one.job.max_gpus, one.job.asked, one.job.elastic) == (1, 4, 2, True)
    assert (one.job.preemptible, one.checkpoint_seconds) == (True, 30)
    (other,) = read(tmp_path, '[{"id": "x", "submitted": 5, "seconds": 60, "gpus": 2, "preemptible": true}]')
    assert (other.job.submitted_at, other.job.elastic, other.job.preemptible) == (5, False, True)


def test_our_own_format_has_which_gpus_a_job_accepts(tmp_path: Path) -> None:
    head = "id,submitted,seconds,gpus,gpu_memory_gib,gpu_kinds,same_gpu_kind\n"
    one, other = read(tmp_path, f"{head}x,0,60,2,24,A100 | V100,yes\ny,0,60,2,,,\n")
    assert one.job.gpu_request == GpuRequest(24 * 1024, ("A100", "V100"), True)
    assert other.job.gpu_request is ANY_GPU
    (third,) = read(tmp_path, '[{"id": "x", "submitted": 5, "seconds": 60, "gpus": 2, "gpu_kinds": ["T4"]}]')
    assert third.job.gpu_request == GpuRequest(kinds=("T4",))


def test_speeds_of_models_come_from_tables_of_throughputs(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "bert.csv").write_text("global_batch_size,1,2,4\n64,2.0,3.0,4.0\n128,1.0,,nan\n")
    (job,) = read(tmp_path, "id,submitted,seconds,gpus,script,batch\nx,0,60,2,bert,70\n", profiles=tables, mode="fixed")
    assert plain(job).curve.speeds == (1.0, 1.5, 1.75, 2.0)
    assert plain(job).work == 90


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "in an unknown format"),
        ("name,time,application,num_replicas,batch_size\n", "--profiles"),
        ("[1]", "list of objects"),
        ("[{", "not valid JSON"),
        ("id,submitted,seconds,gpus\nx,soon,1,1\n", "not a time"),
        ("id,submitted,seconds,gpus,max_gpus\nx,0,1,4,2\n", "min_gpus <= gpus <= max_gpus"),
        ('[{"id": "x"}]', "no column 'gpus'"),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused_with_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text)


def test_clusters_in_a_word() -> None:
    mixed = compare.parse_cluster("2x4:T4+1x8:A100")
    assert [(node.total, node.kind) for node in mixed] == [(4, "T4"), (4, "T4"), (8, "A100")]
    (large,) = compare.parse_cluster("1x8:A100 80GB/80")
    assert (large.kind, large.gpu_memory_mib) == ("A100 80GB", 80 * 1024)
    for wrong in ("", "4", "0x4", "4x-1", "1x4:T4/x", "1x4:T4/0", "axb"):
        with pytest.raises(ValueError, match="not a cluster"):
            compare.parse_cluster(wrong)


def test_the_picture_escapes_names_and_survives_having_nothing_to_show() -> None:
    svg = plot.turnarounds("a & b", {"<fifo>": [60.0, 3600.0], "none": []})
    assert "a &amp; b" in svg
    assert "&lt;fifo&gt;" in svg
    assert "<fifo>" not in svg
