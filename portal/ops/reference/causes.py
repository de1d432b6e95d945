"""The causes of failures, as the page of a job shows them: title and advice of each, with examples of their parameters."""

from typing import Any

from portal.sentences.causes import CAUSES, Explanation, code, machine, stops, training

INTRODUCTION = """# Causes of failures

When an attempt of a job does not succeed, its page names one cause and one next step under *What to do*. This page has every cause
that there is. The page of the job shows more: the line of the code, and what the program wrote. [When it fails](../user/when-it-fails.md)
explains how the cause is found, and has a table of [exit codes](../user/when-it-fails.md#exit-codes).

How to read it:

- The heading is the title that the page shows, here with an example: `timm`, `train.py`, the environment PyTorch vision and rank 3
  are made up.
- Under *In the API* is the `code` in `cause` of `GET /api/v1/jobs/ID/`. Codes never change; titles may. Programs should use codes.
- Where the same cause has several forms, each has its own title and advice.
- After the title, the page adds *(rank 3)* where one rank of several is the reason. If only one rank raised the exception, the page
  also names what to check on that rank.
"""
GROUPS = (
    (
        "Python and shells",
        code,
        "What Python and shells could not find, read or run. The fault is in the code or in the job's fields.",
    ),
    ("Memory, disks and devices", machine, "A limit of the job, of the node or of a GPU."),
    ("Models, data and ranks", training, "What PyTorch, Horovod and the training library report."),
    (
        "Stops and nodes",
        stops,
        "The attempt was ended from outside. A job at its time limit fails and is not tried again. Other stops use no retry: unless it "
        "was cancelled or put on hold, the job is queued again by itself, and fails only when this happens too often in a row.",
    ),
)

Variants = tuple[tuple[str, dict[str, Any]], ...]
EXAMPLES: dict[str, Variants] = {
    "import_error": (
        (
            "another environment has the package",
            {"module": "timm", "environments": ["PyTorch vision"], "environment": "PyTorch"},
        ),
        ("no environment has it", {"module": "timm", "environment": "PyTorch"}),
        ("only its name suggests a package", {"module": "mylib", "environment": "PyTorch", "offered": "guessed"}),
        ("its name is usual for a file", {"module": "utils", "environment": "PyTorch", "offered": ""}),
        (
            "no environment has it together with others",
            {"module": "timm", "environment": "PyTorch", "beside": ["torch"]},
        ),
        ("the package has another name", {"module": "cv2", "package": "opencv-python", "environment": "PyTorch"}),
        ("the upload has it elsewhere", {"module": "utils", "elsewhere": "lib/utils.py", "folder": "lib"}),
        ("the module has no such name", {}),
    ),
    "installs_packages": (
        ("the code or a script", {}),
        ("a plain command", {"packages": ["rich", "pandas>=2"]}),
    ),
    "shadowed": (("", {"module": "random", "file": "random.py"}),),
    "circular_import": (("", {"module": "model"}),),
    "relative_import": (
        ("the entry of the job", {"module": "package.train"}),
        ("a plain command", {"module": "package.train", "plain_command": True}),
        ("a file in no package", {"file": "utils.py"}),
    ),
    "missing_library": (
        ("", {"library": "libgomp.so.1"}),
        ("a library of graphics", {"library": "libGL.so.1"}),
    ),
    "syntax_error": (
        ("", {"place": "line 3 of train.py"}),
        ("a command of notebooks", {"place": "line 3 of train.py", "of_notebook": True}),
        ("an encoding", {"place": "line 3 of train.py", "encoding": True}),
        ("indentation", {"place": "line 3 of train.py", "indentation": True}),
    ),
    "file_not_found": (
        ("", {"file": "data.csv"}),
        ("the entry of the job", {"entry": "train.py"}),
        ("a plain command", {"entry": "train.py", "plain_command": True}),
        (
            "a plain command, and the upload has it elsewhere",
            {"entry": "train.py", "plain_command": True, "elsewhere": "code/train.py"},
        ),
        ("the upload has it elsewhere", {"file": "data.csv", "elsewhere": "data/data.csv"}),
        ("the code expects to start in a folder", {"file": "data.csv", "elsewhere": "code/data.csv", "folder": "code"}),
        ("a path of Windows", {"file": "data\\train.csv", "elsewhere": "data/train.csv", "backslashes": True}),
        ("a path of another computer", {"file": "/home/ada/data.csv", "other_computer": True}),
    ),
    "no_internet": (
        ("no host is allowed", {"host": "huggingface.co"}),
        ("the host is not allowed", {"host": "huggingface.co", "reason": "not_allowed", "has_hosts": True}),
        ("the host is in the local network", {"host": "mlflow.example.org", "reason": "internal", "has_hosts": True}),
        ("the host does not answer", {"host": "huggingface.co", "reason": "unreachable", "has_hosts": True}),
        ("the program looks up names itself", {"host": "huggingface.co", "reason": "bypassed", "has_hosts": True}),
        ("some hosts are allowed", {"has_hosts": True}),
    ),
    "folder_missing": (
        ("", {"folder": "results"}),
        ("the command goes there", {"folder": "code", "entered": True}),
        (
            "the command goes there, and the upload has it elsewhere",
            {"folder": "code", "entered": True, "elsewhere": "lab/code"},
        ),
        ("a path of another computer", {"folder": "/home/ada/results", "other_computer": True}),
    ),
    "shell_syntax": (("", {"script": "run.sh"}),),
    "command_not_found": (
        ("", {"command": "dvc"}),
        ("an environment has it", {"command": "dvc", "environments": ["PyTorch vision"]}),
        ("a launcher", {"command": "torchrun"}),
        ("another scheduler", {"command": "sbatch"}),
        ("a file", {"command": "./run.sh"}),
        ("a name with spaces", {"command": "my", "file": "my script.py"}),
        ("an activation of packages", {"command": "conda"}),
    ),
    "not_executable": (("", {"file": "run.sh"}),),
    "bad_interpreter": (("", {"file": "run.sh", "interpreter": "/usr/local/bin/python3.9"}),),
    "exception": (
        ("one of the code or of a library", {"name": "MyError", "place": "line 3 of train.py"}),
        (
            "a name that Python has a suggestion for",
            {"name": "NameError", "place": "line 3 of train.py", "suggestion": "model"},
        ),
        *((f"`{name}`", {"name": name, "place": "line 3 of train.py"}) for name in code.HINTS),
    ),
    "signal": (
        ("sent by a program", {"name": "SIGTERM"}),
        ("a library gave up", {"name": "SIGABRT"}),
        ("a crash", {"name": "SIGSEGV"}),
    ),
    "exit_code": (
        ("", {"number": 3}),
        ("it ended itself after some lines", {"number": 3, "quoted": True}),
        ("it ended itself without a message", {"number": 3, "quoted": False}),
    ),
    "out_of_memory": (
        ("its own limit", {"over_limit": True, "limit_mib": 16_384}),
        ("the memory of the machine", {}),
    ),
    "disk_full": (("its own limit", {"over_limit": True}), ("the disk of the machine", {})),
    "held": (
        ("", {}),
        ("with a checkpoint", {"resumable": True}),
        ("without checkpoints", {"resumable": False}),
    ),
    "preempted": (
        ("with a checkpoint", {"drained": False, "resumable": True}),
        ("without checkpoints", {"drained": False, "resumable": False}),
        ("a node that is being drained", {"drained": True, "resumable": True}),
    ),
    "time_limit": (
        ("", {"seconds": 7_200, "was_silent": False}),
        ("it was silent before", {"seconds": 7_200, "was_silent": True}),
        ("it had reported an error before", {"seconds": 7_200, "was_silent": True, "raised": "ValueError"}),
    ),
    "node_lost": (
        ("", {"node": "gpu-1", "fenced": False, "final": False}),
        ("its node could not reach the portal", {"node": "gpu-1", "fenced": True, "final": False}),
        ("too often", {"node": "gpu-1", "fenced": False, "final": True}),
    ),
    "environment": (("", {"final": False}), ("too often", {"final": True})),
    "node_trouble": (("", {"node": "gpu-1", "final": False}), ("too often", {"node": "gpu-1", "final": True})),
    "stuck": (("", {"final": False}), ("too often", {"final": True})),
    "launch": (("", {"final": False}), ("too often", {"final": True})),
    "rank_hangs": (("", {"seconds": "600"}),),
    "lightning_ranks": (("", {"devices": "4", "nodes": "1", "ranks": "8"}),),
    "mpi_failed": (("", {"command": "mpirun"}),),
    "stood_still": (("", {"seconds": "30"}),),
}
"""By code, what distinguishes each form of a cause and parameters of it. The others have no parameters."""

MORE = {
    "installs_packages": "[A package is missing](../user/environments.md#a-package-is-missing)",
    "import_error": "[A package is missing](../user/environments.md#a-package-is-missing)",
    "file_not_found": "[Inside a job](../user/inside-a-job.md)",
    "folder_missing": "[Inside a job](../user/inside-a-job.md)",
    "not_writable": "[Inside a job](../user/inside-a-job.md)",
    "no_internet": "[Inside a job](../user/inside-a-job.md)",
    "gpu_out_of_memory": "[A batch that does not fit](../training/batch-size.md#a-batch-that-does-not-fit)",
    "disk_full": "[Limits](../user/limits.md)",
    "time_limit": "[Continue in a new job](../how-to/resume-pytorch.md#continue-in-a-new-job)",
    "killed": "[Exit code 137](../user/when-it-fails.md#exit-code-137)",
    "signal": "[Exit codes](../user/when-it-fails.md#exit-codes)",
    "exit_code": "[Exit codes](../user/when-it-fails.md#exit-codes)",
    "preempted": "[Checkpoints and stops](../user/checkpoints.md)",
    "held": "[Jobs](../user/jobs.md)",
    "ranks_diverged": "[One model on all ranks](../training/correctness.md)",
    "rank_hangs": "[When a rank hangs](../user/when-it-fails.md#when-a-rank-hangs)",
    "waited_for_rank": "[When a rank hangs](../user/when-it-fails.md#when-a-rank-hangs)",
    "stood_still": "[When a rank hangs](../user/when-it-fails.md#when-a-rank-hangs)",
    "ranks_apart": "[Use torchrun](../how-to/torchrun.md)",
    "checkpoint_differs": "[Checkpoints and stops](../user/checkpoints.md)",
    "node_lost": "[When something breaks](../operations/faults.md), for admins",
    "gpu_hardware": "[GPUs that misbehave](../admin/gpus.md), for admins",
    "environment": "[Find out why a job does not start](../how-to/admin-job-waits.md), for admins",
}
"""By code, a page with more about it."""


def page() -> str:
    """Return the page: a section for each cause, in the order of the code."""
    lines = [INTRODUCTION]
    for title, module, about in GROUPS:
        lines += [f"## {title}", "", about, ""]
        for key, function in CAUSES.items():
            if function.__module__ == module.__name__:
                lines += [_section(key), ""]
    return "\n".join(lines)


def explanations(key: str) -> list[tuple[str, Explanation]]:
    """Return the forms of a cause: what distinguishes each, and what the page shows."""
    return [(about, CAUSES[key](**parameters)) for about, parameters in EXAMPLES.get(key, (("", {}),))]


def _section(key: str) -> str:
    forms = explanations(key)
    first = forms[0][1].title
    lines = [f"(cause-{key})=", f"### {_safe(first)}", ""]
    if len(forms) == 1:
        lines += [_safe(forms[0][1].advice), ""] if forms[0][1].advice else []
    else:
        lines += ["| form | title | what to do |", "|---|---|---|"]
        lines += [f"| {about or '–'} | {_cell(form.title)} | {_cell(form.advice)} |" for about, form in forms]
        lines.append("")
    more = f" More: {MORE[key]}." if key in MORE else ""
    return "\n".join([*lines, f"In the API: `{key}`.{more}"])


def _cell(text: str) -> str:
    return _safe(text).replace("|", "\\|")


def _safe(text: str) -> str:
    """Return a sentence for Markdown, with the characters as they are."""
    return text.replace("\\", "\\\\").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;").replace("[", "\\[")
