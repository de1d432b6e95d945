"""The policy written outside works as it stands in the handbook, and what the handbook shows as an answer is one."""

import json
import re
import subprocess
import sys
from pathlib import Path

from scheduling import registry
from scheduling.simulate.filter import Filter

PAGE = Path(__file__).resolve().parents[3] / "docs" / "policies" / "simulating.md"
SECTION = PAGE.read_text().split("## A policy as a filter")[1]


def test_the_policy_written_outside_serves_the_least_served() -> None:
    code = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)[0]
    jobs = [{"id": "x", "asked_gpus": 3, "served_gpu_s": 9}, {"id": "y", "asked_gpus": 2, "served_gpu_s": 1}]
    line = json.dumps({"nodes": [{"id": "0", "gpus": 4}], "jobs": jobs})
    done = subprocess.run([sys.executable, "-c", code], input=line + "\n", capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"alloc": {"y": {"0": 2}}}


def test_the_question_shown_is_understood() -> None:
    example = re.findall(r"```\n(\{\"v\".*?)```", SECTION, re.DOTALL)[0]
    question, answer = example.split('\n{"alloc"')
    given = Filter(registry.build("tiresias", {})).answer(json.loads(question))
    assert given == json.loads('{"alloc"' + answer)
