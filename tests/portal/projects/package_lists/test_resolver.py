"""uv, which obeys options and addresses in such files, reads what was accepted as requirements and as nothing else."""

import subprocess
from pathlib import Path

from portal.projects.package_lists.reading import read_list
from runners.environments.installing import uv_program

ASKED = """\
Torch_Vision.x[A, b] >= 1.0 , < 2 ; python_version > '3.8' and (os_name == "posix" or sys_platform in 'linux, darwin')
numpy ; platform_release not in 'a, b'
torch===2.1.0+cu118
pandas ~= 2.0
rich != 13.*
six==1.16 --hash=sha256:abcd
numpy @ file:///croot/numpy_1/work
--no-binary six
six --no-binary six
--extra-index-url http://127.0.0.1:9/
-r http://127.0.0.1:9/x.txt
-e .
a @ http://127.0.0.1:9/a.whl
a ; sys_platform == 'x --index-url http://127.0.0.1:9/'
"""


def test_uv_understands_each_accepted_line(tmp_path: Path) -> None:
    found = read_list("requirements.txt", {"requirements.txt": ASKED.encode()}.get)
    assert len(found.refused) == 7
    program = uv_program()
    assert program is not None
    for line in found.lines:
        file = tmp_path / "requirements.in"
        file.write_text(f"{line}\n")
        command = [str(program), "pip", "compile", "--no-config", "--no-index", "--offline", "--quiet", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "No solution found" in done.stderr, (line, done.stderr)
        assert "127.0.0.1" not in line
