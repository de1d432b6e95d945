"""What a cause advises, from what programs of different fields wrote, and from the files of their upload."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from portal.jobs import causes
from portal.jobs.causes import Facts
from portal.jobs.causes.output import Output, read_lines
from portal.jobs.spec import label_of
from portal.sentences.causes import explain_cause

FAILED = Facts(outcome="failed", exit_reason="exited", exit_code=1)


def explained(log: str, files: Sequence[str] = (), exit_code: int = 1) -> dict[str, str]:
    facts = replace(FAILED, files=files, exit_code=exit_code)
    cause = causes.classify(facts, [Output(read_lines(log.encode()))])
    return explain_cause(json.loads(json.dumps(asdict(cause))))


def trace(path: str, source: str, error: str) -> str:
    return f'Traceback (most recent call last):\n  File "/x/workspace/{path}", line 9, in <module>\n    {source}\n{error}\n'


def not_found(path: str, script: str = "fit.py") -> str:
    return trace(script, f"open({path!r})", f"FileNotFoundError: [Errno 2] No such file or directory: {path!r}")


@pytest.mark.parametrize(
    ("path", "script", "files", "title", "words"),
    [
        ("data\\Müller.txt", "fit.py", ["data/Müller.txt"], "The file data\\Müller.txt was", "write / in paths"),
        (".\\data\\a.txt", "fit.py", ["data/a.txt"], "The file .\\data\\a.txt was", "The upload has it as data/a.txt"),
        ("config.ini", "exp/one/fit.py", ["exp/one/config.ini"], "config.ini", "begin a plain command with cd exp/one &&"),
        ("../a.csv", "my exp/fit.py", ["a.csv"], "../a.csv", "cd 'my exp' &&"),
        ("config.ini", "exp/fit.py", ["conf/config.ini"], "config.ini", "at the top of the upload: use that path"),
        ("config.ini", "fit.py", ["conf/config.ini"], "config.ini", "one relative to __file__."),
        ("C:\\Users\\a\\x.csv", "fit.py", [], "C:\\Users\\a\\x.csv", "of another computer"),
    ],
)  # fmt: skip
def test_a_file_that_is_elsewhere_in_the_upload(
    path: str, script: str, files: list[str], title: str, words: str
) -> None:
    cause = explained(not_found(path, script), [script, *files])
    assert cause["code"] == "file_not_found" and title in cause["title"] and words in cause["advice"]


@pytest.mark.parametrize(
    ("source", "error", "folder"),
    [
        ("plt.savefig('figures/rt.png')", "FileNotFoundError: [Errno 2] No such file or directory: 'figures/rt.png'", "figures"),
        ("with open('a/b/log.txt', 'w') as f:", "FileNotFoundError: [Errno 2] No such file or directory: 'a/b/log.txt'", "a/b"),
        ("open(name, mode=\"ab\")", "FileNotFoundError: [Errno 2] No such file or directory: 'out/x'", "out"),
        ("np.savetxt(path, x)", "FileNotFoundError: [Errno 2] No such file or directory: '../res/x.csv'", "../res"),
        ("torch.save(m, 'ck/m.pt')", "RuntimeError: Parent directory ck does not exist.", "ck"),
        ("df.to_csv('tables/x.csv')", "OSError: Cannot save file into a non-existent directory: 'tables'", "tables"),
    ],
)  # fmt: skip
def test_a_folder_that_the_code_writes_into_must_exist(source: str, error: str, folder: str) -> None:
    cause = explained(trace("fit.py", source, error), ["fit.py"])
    assert cause["code"] == "folder_missing" and f"The folder {folder} was" in cause["title"]
    assert "os.makedirs" in cause["advice"]


@pytest.mark.parametrize("source", ["open('data/x.csv')", "pd.read_csv('data/x.csv')", "open('data/x.csv', 'rb')",
    "pd.read_csv('data/x.csv').to_numpy()", "f.write(open('data/x.csv').read())", "torch.load('data/x.csv').to_dict()",
])  # fmt: skip
def test_a_file_that_the_code_reads_is_the_one_that_is_missing(source: str) -> None:
    error = "FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'"
    cause = explained(trace("fit.py", source, error), ["fit.py"])
    assert cause["code"] == "file_not_found" and "data/x.csv" in cause["title"]


NO_PARENT = "ImportError: attempted relative import with no known parent package"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("ModuleNotFoundError: No module named 'rich'", "the form offers to install rich."),
        ("ModuleNotFoundError: No module named 'skimage.io'", "the form offers to install scikit-image."),
        ("ModuleNotFoundError: No module named 'fluxlib'", "the form can install a package of that name."),
        ("ModuleNotFoundError: No module named 'helpers'", "make an environment with that package"),
        ("ImportError: this needs more: pip install scikit-image", "the form offers to install scikit-image."),
        ("ImportError: this needs more: pip install apex", "make an environment with that package"),
    ],
)
def test_only_packages_that_are_known_are_offered_by_name(error: str, words: str) -> None:
    assert words in explained(trace("fit.py", "import x", error), ["fit.py"])["advice"]


def test_a_missing_package_of_an_earlier_release_keeps_its_advice() -> None:
    stored = {"code": "import_error", "parameters": {"module": "fluxlib", "environments": []}, "detail": ""}
    assert "the form offers to install fluxlib." in explain_cause(stored)["advice"]


@pytest.mark.parametrize(
    ("launcher", "script", "words"),
    [
        ("torchrun", "nets/fit.py", "make the entry -m nets.fit."),
        ("horovod", "src/nets/fit.py", "make the entry -m nets.fit."),
        ("command", "nets/fit.py", "make the command line python -m nets.fit, with its arguments."),
        ("command", "src/nets/__main__.py", "make the command line python -m nets, with its arguments."),
        ("command", "fit.py", "Python read fit.py without a package"),
        ("torchrun", "my nets/fit.py", "Python read my nets/fit.py without a package"),
    ],
)
def test_a_start_as_a_module_is_advised_in_the_field_that_the_form_has(launcher: str, script: str, words: str) -> None:
    log = trace(script, "from .layers import Net", NO_PARENT)
    facts = replace(FAILED, launcher=launcher, files=[script])
    cause = explain_cause(json.loads(json.dumps(asdict(causes.classify(facts, [Output(read_lines(log.encode()))])))))
    assert cause["code"] == "relative_import" and words in cause["advice"]


def test_a_file_that_another_one_imports_without_its_package_cannot_be_started_as_a_module() -> None:
    log = trace("nets/fit.py", "import layers", "").rstrip("\n").removesuffix("\n")
    log += f'\n  File "/x/workspace/nets/layers.py", line 1, in <module>\n    from .base import Base\n{NO_PARENT}\n'
    cause = explained(log, ["nets/fit.py", "nets/layers.py"])
    assert "nets/layers.py" in cause["advice"] and "-m" not in cause["advice"]


def test_a_cause_of_an_earlier_release_without_the_launcher_still_has_its_advice() -> None:
    stored = {"code": "relative_import", "parameters": {"module": "nets.fit"}, "detail": NO_PARENT}
    assert "make the entry -m nets.fit." in explain_cause(stored)["advice"]


@pytest.mark.parametrize("folder", ["/home/joe/out", "/content/drive", "~/runs", "C:/Users/joe"])
def test_a_folder_of_another_computer_is_not_to_be_created(folder: str) -> None:
    for log in (
        trace("fit.py", "torch.save(m, path)", f"RuntimeError: Parent directory {folder} does not exist."),
        trace("fit.py", "open(p, 'w')", f"FileNotFoundError: [Errno 2] No such file or directory: '{folder}/a'"),
    ):
        cause = explained(log, ["fit.py"])
        assert cause["code"] == "folder_missing" and "SCHEDULEARN_OUTPUTS" in cause["advice"]
        assert "makedirs" not in cause["advice"]


@pytest.mark.parametrize(
    "log",
    [
        "stty: 'standard input': Inappropriate ioctl for device\nLoading\nError: the data set is empty\n",
        "bash: cannot set terminal process group (-1): Inappropriate ioctl for device\nbash: no job control in this shell\n",
        "Cannot open data/x.csv: Inappropriate ioctl for device at run.pl line 3.\n",
        "model.cfg: 3: syntax error, expected '='\n",
        "grammar.y: 12: syntax error in the input\n",
        "tables.conf: line 3: syntax error\n",
    ],
)
def test_what_programs_write_of_something_else_is_no_cause(log: str) -> None:
    assert explained(log)["code"] == "exit_code"


@pytest.mark.parametrize(
    "error", ["CUDA driver version is insufficient for CUDA runtime version", "No CUDA GPUs are available"]
)
def test_a_gpu_that_cannot_be_used_is_not_called_a_cpu_slot(error: str) -> None:
    cause = explained(trace("fit.py", "x.cuda()", f"RuntimeError: {error}"))
    assert cause["code"] == "no_gpu" and "If the job had a GPU" in cause["advice"]


@pytest.mark.parametrize("path", ["data/Muller.txt", "other/config.ini"])
def test_a_folder_is_proposed_only_where_it_helps(path: str) -> None:
    assert " cd " not in explained(not_found(path), ["fit.py", "exp/config.ini"])["advice"]


@pytest.mark.parametrize(
    ("log", "script"),
    [
        ("/usr/bin/bash: -c: line 1: syntax error near unexpected token `('\n", "the command line"),
        ("bash: -c: line 1: unexpected EOF while looking for matching `''\n", "the command line"),
        ('sh: 1: Syntax error: "(" unexpected\n', "the command line"),
        ("run_all.sh: line 12: syntax error: unexpected end of file\n", "the script run_all.sh"),
        ("./run: line 2: syntax error: unexpected end of file\n", "the script ./run"),
        ('bin/all.sh: 9: Syntax error: end of file unexpected (expecting "fi")\n', "the script bin/all.sh"),
        ("/bin/dash: 1: Syntax error: Unterminated quoted string\n", "the command line"),
        (
            "scripts/go on.sh: line 3: syntax error near unexpected token `fi'\nscripts/go on.sh: line 3: `fi'\n",
            "go on.sh",
        ),
    ],
)
def test_what_a_shell_cannot_read(log: str, script: str) -> None:
    cause = explained(log, exit_code=2)
    assert cause["code"] == "shell_syntax" and script in cause["title"] and "quotes" in cause["advice"]


def test_a_shell_error_from_windows_line_endings_is_named_as_such() -> None:
    log = "run.sh: line 4: syntax error near unexpected token `$'do\\r''\nrun.sh: line 4: `for i in 1 2; do\r'\n"
    assert explained(log, exit_code=2)["code"] == "line_endings"


@pytest.mark.parametrize(
    "log",
    [
        "bash: line 1: ./go.sh: cannot execute: required file not found\n",
        "bash: ./go.sh: /bin/sh^M: bad interpreter: No such file or directory\n",
        "sh: 1: ./go.sh: not found\n",
        "bash: line 1: ./jobs/go.sh: cannot execute: required file not found\n",
        trace("fit.py", "subprocess.run(['./go.sh'])", "FileNotFoundError: [Errno 2] No such file or directory: './go.sh'"),
    ],
)  # fmt: skip
def test_a_script_whose_first_line_ends_as_on_windows_is_named_as_such(log: str) -> None:
    facts = replace(FAILED, files=["fit.py", "jobs/go.sh"], read_first_line={"jobs/go.sh": "#!/bin/sh\r"}.__getitem__)
    assert causes.classify(facts, [Output(read_lines(log.encode()))]).code == "line_endings"
    other = replace(facts, read_first_line={"jobs/go.sh": "#!/opt/sh"}.__getitem__)
    if "^M" not in log and "Traceback" not in log:
        cause = causes.classify(other, [Output(read_lines(log.encode()))])
        assert (cause.code, cause.parameters["interpreter"]) == ("bad_interpreter", "/opt/sh")


@pytest.mark.parametrize(
    ("log", "files", "words"),
    [
        (
            "run.sh: line 4: venv/bin/activate: No such file or directory\n",
            [],
            "remove the line with venv/bin/activate",
        ),
        ("run.sh: line 2: conda: command not found\n", [], "offers to install them"),
        ("bash: line 1: module: command not found\n", [], "remove the line with module"),
        ("bash: line 1: Copy: command not found\n", ["Copy of Lab3.py"], "write 'Copy of Lab3.py'"),
        ("bash: line 1: fastqc: command not found\n", ["reads.fq"], "make an environment with that package"),
        (
            "bash: line 1: srun: command not found\n",
            [],
            "in place of srun. “Duplicate and edit” can translate its line",
        ),
        ("bash: line 1: accelerate: command not found\n", [], "launcher torchrun or Horovod"),
        ("run.sh: line 9: sbatch: command not found\n", [], "There is no other scheduler here"),
        ("bash: line 1: ./go/run: No such file or directory\n", ["go.sh"], "upload the file if it is missing"),
    ],
)
def test_what_a_shell_did_not_find(log: str, files: list[str], words: str) -> None:
    cause = explained(log, files, exit_code=127)
    assert cause["code"] == "command_not_found" and words in cause["advice"]


def test_code_that_asks_for_input_learns_how_to_get_it() -> None:
    cause = explained("Name: " + trace("quiz.py", "name = input()", "EOFError: EOF when reading a line"))
    assert cause["code"] == "input_needed" and "printf" in cause["advice"]
    other = explained(trace("read.py", "pickle.load(file)", "EOFError: Ran out of input"))
    assert other["code"] == "exception" and "incomplete" in other["advice"]


@pytest.mark.parametrize(
    ("error", "suggestion"),
    [
        ("AttributeError: 'SGD' object has no attribute 'param_group'. Did you mean: 'param_groups'?", "param_groups"),
        ("NameError: name 'epcohs' is not defined. Did you mean: 'epochs'?", "epochs"),
    ],
)
def test_the_spelling_that_python_suggests_is_in_the_advice(error: str, suggestion: str) -> None:
    assert f"Python suggests {suggestion}:" in explained(trace("fit.py", "x", error))["advice"]


def test_arguments_that_are_missing_are_quoted_with_the_usage() -> None:
    log = (
        "starting\nusage: fluxnet [-h] {train,evaluate} ...\n"
        "fluxnet: error: the following arguments are required: command\n"
    )
    cause = explained(log, exit_code=2)
    assert cause["code"] == "arguments" and cause["detail"].startswith("usage: fluxnet [-h] {train,evaluate} ...\n")
    assert cause["detail"].count("error:") == 1 and "command line" in cause["advice"]


def test_a_quoted_line_keeps_its_colon() -> None:
    assert explained(trace("fit.py", "with open('a') as f:", "ValueError: x"))["detail"].endswith(
        "with open('a') as f:"
    )


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (
            "ValueError: You set `devices=4` and `num_nodes=1` in Lightning, but the product (4 * 1) does not match the world size (8).",
            "lightning_ranks",
            "expects 4 x 1 ranks, and the job has 8",
        ),
        (
            "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3]\n"
            " But your machine only has: [0, 1]",
            "wrong_gpu",
            "as many as the job has GPUs",
        ),
        ("ValueError: No slot '5' specified on host 'localhost'", "wrong_gpu", "numbered from 0"),
        ("ValueError: Num nodes is >1 but no extra nodes available via hostfile", "other_nodes", "remove --nnodes"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "other_nodes", "runs on one node"),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
            "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            "address_in_use",
            "--master_port",
        ),
    ],
)
def test_what_launchers_in_a_plain_command_raise(error: str, code: str, words: str) -> None:
    cause = explained(trace("train.py", "run()", error))
    assert cause["code"] == code and words in f"{cause['title']} {cause['advice']}"


@pytest.mark.parametrize(
    "log",
    [
        "There are not enough slots available in the system to satisfy the 4\nslots that were requested by the application:\n",
        "mpirun was unable to launch the specified application as it could not access\nor execute an executable:\n",
    ],
)
def test_mpirun_that_starts_nothing_is_named(log: str) -> None:
    cause = explained(f"{'-' * 74}\n{log}{'-' * 74}\n", exit_code=1)
    assert cause["code"] == "mpi_failed" and "leave out mpirun" in cause["advice"]


def test_what_the_launcher_of_deepspeed_reports_afterwards_does_not_hide_the_error() -> None:
    report = "".join(
        f"[2026-11-30 02:39:28,439] [{level}] [launch.py:{number}:sigkill_handler] {text}\n"
        for level, number, text in (
            ("INFO", 253, "Killing subprocess 17034"),
            ("ERROR", 259, "['/opt/env/bin/python3', '-u', 'train.py'] exits with return code = 1"),
        )
    )
    cause = explained(trace("train.py", 'config["weights"]', "KeyError: 'weights'") + report)
    assert cause["code"] == "exception" and "KeyError" in cause["title"]


FULL = "OSError: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("log", "code"),
    [
        (trace("fit.py", "np.save('/dev/shm/x.npy', x)", FULL), "shared_memory"),
        (trace("fit.py", "Path('/dev/shm/a').write_bytes(x)", f"{FULL}: '/dev/shm/a'"), "shared_memory"),
        ("dd: error writing '/dev/shm/x': No space left on device\n", "shared_memory"),
        (trace("fit.py", "np.save('/tmp/x.npy', x)", FULL), "disk_full"),
        (trace("fit.py", "np.save(path, x)", "OSError: 80000000 requested and 6021120 written"), "disk_full"),
        (trace("fit.py", "torch.save(x, path)", "OSError: [Errno 27] File too large"), "file_too_large"),
        ("DataLoader worker (pid 7) is killed by signal: Bus error.\n", "shared_memory"),
    ],
)
def test_a_job_without_space_names_the_field_that_gives_more(log: str, code: str) -> None:
    fields = {"shared_memory": ["shm_mib"], "disk_full": ["scratch_mib", "shm_mib"], "file_too_large": ["scratch_mib"]}
    cause = explained(log)
    assert cause["code"] == code and "“Duplicate and edit”" in cause["advice"]
    assert all(f"“{label_of(name)}”" in cause["advice"] for name in fields[code])


def test_limits_that_ended_a_job_name_the_field_that_gives_more() -> None:
    for reason, field in (("oom", "memory_mib_per_gpu"), ("disk", "scratch_mib")):
        advice = explain_cause(asdict(causes.classify(replace(FAILED, exit_reason=reason), [])))["advice"]
        assert f"enter more under More, “{label_of(field)}”" in advice


@pytest.mark.parametrize(
    ("log", "files", "words"),
    [
        ("bash: line 1: cd: lab: No such file or directory\n", ["fit.py"], "there is no such folder: check its name"),
        ("bash: line 1: cd: lab: No such file or directory\n", ["all/lab/fit.py"], "The upload has it as all/lab."),
        ("run.sh: line 3: cd: ./Lab: No such file or directory\n", ["lab/fit.py"], "The upload has it as lab."),
        ("sh: 1: cd: can't cd to lab\n", ["fit.py"], "mkdir -p"),
        ("bash: line 1: cd: /home/joe/lab: No such file or directory\n", [], "of another computer"),
        (
            trace("fit.py", "for name in os.listdir('lab'):", "FileNotFoundError: [Errno 2] No such file or directory: 'lab'"),
            ["all/lab/x.csv"],
            "The upload has it as all/lab.",
        ),
    ],
)  # fmt: skip
def test_a_folder_that_a_command_does_not_find_is_no_file(log: str, files: list[str], words: str) -> None:
    cause = explained(log, files)
    assert cause["code"] == "folder_missing" and cause["title"].startswith("The folder ") and words in cause["advice"]


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "python: can't open file '/x/workspace/fit.py': [Errno 2] No such file or directory\n",
            "write lab/fit.py, as",
        ),
        (
            "python: can't open file '/x/workspace/no.py': [Errno 2] No such file or directory\n",
            "of an uploaded file in",
        ),
        ("bash: go.sh: No such file or directory\n", "write jobs/go.sh, as the upload has it,"),
        ("sh: 0: cannot open no.sh: No such file\n", "of an uploaded file in the command line"),
    ],
)
def test_a_plain_command_without_its_file_is_corrected_in_the_command_line(log: str, words: str) -> None:
    facts = replace(FAILED, launcher="command", files=["lab/fit.py", "jobs/go.sh"])
    cause = explain_cause(asdict(causes.classify(facts, [Output(read_lines(log.encode()), exit_code=2)])))
    assert words in cause["advice"] and "entry" not in cause["advice"]
    entry = explain_cause(
        asdict(causes.classify(replace(facts, launcher="torchrun"), [Output(read_lines(log.encode()))]))
    )
    assert entry["advice"] == "Choose one of the uploaded files as the entry."


PIP = "Command '['/opt/env/bin/python', '-m', 'pip', 'install', 'rich']' returned non-zero exit status 1."


@pytest.mark.parametrize(
    "log",
    [
        trace("fit.py", "subprocess.check_call(line)", f"subprocess.CalledProcessError: {PIP}"),
        trace("fit.py", "run(line)", "subprocess.CalledProcessError: Command 'conda install -y rich' died with <Signals.SIGTERM: 15>."),
        trace("fit.py", "run(line)", "FileNotFoundError: [Errno 2] No such file or directory: 'pip'"),
        trace("fit.py", "import pip", "ModuleNotFoundError: No module named 'pip'"),
        "/opt/env/bin/python: No module named pip\n",
        "bash: line 1: pip3: command not found\n",
        "ERROR: Could not find a version that satisfies the requirement rich (from versions: none)\n"
        "ERROR: No matching distribution found for rich\n",
    ],
)  # fmt: skip
def test_code_that_installs_packages_learns_how_to_have_them(log: str) -> None:
    cause = explained(log, ["fit.py"])
    assert cause["code"] == "installs_packages" and "List the packages in a requirements.txt" in cause["advice"]


@pytest.mark.parametrize(
    ("command", "log", "words"),
    [
        (
            "pip install 'plumbum>=1.8' && python fit.py",
            "WARNING: Retrying after connection broken by NewConnectionError: Failed to establish a new connection: "
            "[Errno -3] Temporary failure in name resolution: /simple/plumbum/\n",
            "make an environment with plumbum>=1.8, under Environments",
        ),
        (
            "uv pip install plumbum zict; python fit.py",
            "OSError: [Errno 30] Read-only file system: '/opt/env/lib/python3.12/site-packages/zict'\n",
            "make an environment with plumbum, zict, under Environments",
        ),
        ("conda install -y -c conda-forge zarr", "bash: line 1: conda: command not found\n", "environment with zarr,"),
        (
            "apt-get install -y libsndfile1 && python fit.py",
            "E: Unable to acquire the dpkg frontend lock, are you root?\n",
            "Remove that line.",
        ),
        ("python fit.py", "Could not resolve host: pypi.org\n", "Remove that line."),
    ],
)
def test_a_command_that_installs_packages_learns_which_environment_to_make(command: str, log: str, words: str) -> None:
    facts = Facts("failed", exit_code=1, exit_reason="exited", launcher="command", command=command)
    cause = explain_cause(asdict(causes.classify(facts, [Output(read_lines(log.encode()), exit_code=1)])))
    assert cause["code"] == "installs_packages" and words in cause["advice"]


def test_code_that_fails_after_an_install_is_judged_by_its_own_error() -> None:
    command = "pip install plumbum && python fit.py"
    facts = Facts("failed", exit_code=1, exit_reason="exited", launcher="command", command=command)
    log = trace("fit.py", "open('/srv/x', 'w')", "PermissionError: [Errno 13] Permission denied: '/srv/x'")
    cause = asdict(causes.classify(facts, [Output(read_lines(log.encode()), exit_code=1)]))
    assert cause["code"] == "not_writable"


def test_a_stored_cause_of_an_earlier_release_has_its_advice() -> None:
    stored = {"code": "installs_packages", "parameters": {}, "detail": ""}
    assert "List the packages in a requirements.txt" in explain_cause(stored)["advice"]


@pytest.mark.parametrize("command", ["['make', 'install']", "['python', 'prepare.py', '--add', 'x']", "git add ."])
def test_other_programs_that_fail_install_no_packages(command: str) -> None:
    error = f"subprocess.CalledProcessError: Command {command} returned non-zero exit status 2."
    assert explained(trace("fit.py", "run(line)", error), ["fit.py"])["code"] == "exception"


RESOLUTION = "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>"
TUNNEL = "requests.exceptions.ProxyError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /gpt2 (Caused by ProxyError('Unable to connect to proxy', OSError('Tunnel connection failed: 403 Forbidden')))"


@pytest.mark.parametrize(
    ("error", "facts", "title", "advice"),
    [
        (RESOLUTION, {}, "tried to reach the Internet", "Ask one to allow the host for this project"),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
            {},
            "tried to reach huggingface.co",
            "Ask one to allow huggingface.co for this project",
        ),
        (
            TUNNEL,
            {
                "allowed_hosts": ["packages.example.org"],
                "refused_host": "huggingface.co",
                "refused_reason": "not_allowed",
            },
            "The job may not reach huggingface.co",
            "Ask an admin to allow huggingface.co for this project, under Admin > Network of jobs.",
        ),
        (
            "urllib.error.URLError: <urlopen error Tunnel connection failed: 403 Forbidden>",
            {"allowed_hosts": ["mlflow.lab"], "refused_host": "mlflow.lab", "refused_reason": "internal"},
            "mlflow.lab is in the local network",
            "as a host of the local network",
        ),
        (
            "requests.exceptions.ConnectionError: HTTPConnectionPool(host='mlflow.lab.org', port=80): Max retries exceeded with url: /",
            {"allowed_hosts": ["mlflow.lab.org"], "refused_host": "mlflow.lab.org", "refused_reason": "unreachable"},
            "did not reach mlflow.lab.org",
            "did not answer",
        ),
        (
            "fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com",
            {"allowed_hosts": ["*.github.com", "github.com internal"]},
            "did not use the proxy for github.com",
            "HTTPS_PROXY",
        ),
        (
            RESOLUTION,
            {"allowed_hosts": ["packages.example.org"]},
            "tried to reach the host, and could not",
            "under Details",
        ),
    ],
)
def test_a_host_that_was_not_reached_is_named_with_the_way_to_it(
    error: str, facts: dict[str, Any], title: str, advice: str
) -> None:
    log = trace("fit.py", "load()", error) if "Error" in error else error
    cause = causes.classify(replace(FAILED, **facts), [Output(read_lines(log.encode()), exit_code=1)])
    shown = explain_cause(json.loads(json.dumps(asdict(cause))))
    assert shown["code"] == "no_internet" and title in shown["title"] and advice in shown["advice"]
