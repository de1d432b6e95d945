import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.launch.files import ContainerPaths, Control, Host, Stop
from tests.examples import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)


def control_with(folder: Path, content: str | bytes) -> Control:
    (folder / "control.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    control = Control(folder)
    control.refresh()
    return control


def test_it_reads_the_control_file_of_the_agent(tmp_path: Path) -> None:
    content = {"stop": {"reason": "preempted", "grace_seconds": 7}, "hosts": [{"name": "h1", "slots": 2}]}
    control = control_with(tmp_path, json.dumps(content))
    assert control.stop == Stop("preempted", 7.0)
    assert control.hosts == (Host("h1", 2),)


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\xff\xfe",
        b"[1, 2]",
        b"17",
        b'"stop"',
        b"[" * 100_000,
        b'{"hosts": 3}',
        b'{"hosts": [{"name": "../h1", "slots": 1}]}',
        b'{"hosts": [{"name": "h1", "slots": 0}]}',
        b'{"hosts": [{"name": "h1", "slots": 1e9}]}',
        b'{"stop": "now"}',
        b'{"stop": {"grace_seconds": "soon"}}',
    ],
)
def test_junk_changes_nothing(tmp_path: Path, junk: bytes) -> None:
    control = control_with(tmp_path, json.dumps({"hosts": [{"name": "h0", "slots": 1}]}))
    (tmp_path / "control.json").write_bytes(junk)
    control.refresh()
    assert control.stop is None
    assert control.hosts == ((Host("h0", 1),) if junk else ())


@settings(max_examples=examples(200), deadline=None)
@given(stop=JSON, hosts=JSON)
def test_nothing_in_control_json_can_raise(tmp_path_factory: pytest.TempPathFactory, stop: Any, hosts: Any) -> None:
    folder = tmp_path_factory.mktemp("control")
    control = control_with(folder, json.dumps({"stop": stop, "hosts": hosts}))
    assert control.stop is None or 0 <= control.stop.grace_seconds <= 3600


def test_a_stop_is_never_taken_back(tmp_path: Path) -> None:
    control = control_with(tmp_path, '{"stop": {"reason": "cancelled", "grace_seconds": 1}}')
    (tmp_path / "control.json").write_text('{"stop": null}')
    control.refresh()
    assert control.stop == Stop("cancelled", 1.0)


@pytest.mark.parametrize("junk", ["", "[]", "{}", "null", '{"name": "x", "surprise": 1}', '{"command": 5}'])
def test_a_job_that_cannot_be_understood_is_refused_with_a_sentence(tmp_path: Path, junk: str) -> None:
    (tmp_path / "job.json").write_text(junk)
    with pytest.raises(ValueError, match="not a container's description"):
        Control(tmp_path).spec()


def test_places_default_to_the_mounts() -> None:
    paths = ContainerPaths.from_env({"SCHEDULEARN_DATA": "", "SCHEDULEARN_OUTPUTS": "/elsewhere"})
    assert (paths.workspace, paths.data, paths.outputs) == (Path("/workspace"), Path("/data"), Path("/elsewhere"))
