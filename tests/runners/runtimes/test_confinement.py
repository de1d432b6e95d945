"""The command line of bubblewrap, what a Python needs, and what is reported where bubblewrap is missing or refused."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners.host import interpreters
from runners.host.interpreters import InterpreterPaths
from runners.messages.confinement import FilesAndProcesses, FilesOnly, Isolated, NotConfined
from runners.runtimes import confinement_check
from runners.runtimes.confinement import GPU_CONTROLS, MIG_CAPABILITIES, JobView, Sandbox, command_line, gpu_devices
from runners.runtimes.confinement_check import find_confinement
from runners.runtimes.host_config import Owner

SANDBOX = Sandbox("/usr/bin/bwrap", own_processes=True, nested_users=False, sizes=True)
PYTHON = InterpreterPaths(
    (Path("/home/ada/.cache/envs/torch"), Path("/home/ada/python")), ((Path("/home/ada/bin/python"), "python3"),)
)
VIEW = JobView(
    owner=Owner(1000, 1000),
    is_root=False,
    python=PYTHON,
    cwd=Path("/home/ada/lab"),
    private=Path("/home/ada/lab/var/agent/processes/sl-1.tmp"),
    read_only=(Path("/home/ada/lab/runners/launch"), Path("/home/ada/lab/var/agent/containers/sl-1/control")),
    writable=(Path("/home/ada/lab/var/agent/containers/sl-1/workspace"),),
    tmp_mib=16,
    shm_mib=64,
)
COMMAND = ["/home/ada/.cache/envs/torch/bin/python", "-m", "runners.launch.supervisor"]


def line(sandbox: Sandbox = SANDBOX, **changes: Any) -> list[str]:
    return command_line(sandbox, replace(VIEW, **changes), COMMAND)


def has(words: list[str], *wanted: str) -> bool:
    return any(tuple(words[at : at + len(wanted)]) == wanted for at in range(len(words)))


def sources(words: list[str], option: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == option]


def test_a_job_may_write_to_its_own_folders_alone() -> None:
    words = line()
    assert sources(words, "--bind") == [str(VIEW.writable[0]), str(VIEW.private)]
    assert has(words, "--bind", str(VIEW.private), "/run/job")
    assert {str(path) for path in (*PYTHON.folders, *VIEW.read_only)} == set(sources(words, "--ro-bind"))
    assert has(words, "--remount-ro", "/") and has(words, "--remount-ro", "/dev")
    assert words[-3:] == COMMAND and words[words.index("--") + 1 :] == COMMAND


def test_nothing_of_the_system_is_shown_but_what_is_named() -> None:
    shown = set(sources(line(), "--ro-bind-try"))
    assert not shown & {
        "/",
        "/etc",
        "/home",
        "/root",
        "/run",
        "/var",
        "/opt",
        "/srv",
        "/etc/shadow",
        "/etc/ssl",
        "/etc/pki",
        "/sys",
    }
    assert {"/usr", "/etc/ld.so.cache", "/etc/resolv.conf", "/etc/ssl/certs", "/etc/passwd"} <= shown


def test_folders_come_before_what_lies_in_them() -> None:
    inner, outer = Path("/data/lab/jobs/1"), Path("/data/lab")
    words = line(writable=(inner,), read_only=(outer,))
    assert words.index(str(outer)) < words.index(str(inner))
    assert words.index("/tmp") < words.index(str(outer)), "a temporary folder would hide what was mounted below it"


def test_an_ordinary_user_gets_namespaces_of_its_own_and_no_capability() -> None:
    words = line()
    for option in (
        "--unshare-user",
        "--disable-userns",
        "--unshare-pid",
        "--as-pid-1",
        "--unshare-ipc",
        "--unshare-uts",
    ):
        assert option in words
    assert has(words, "--cap-drop", "ALL") and "--cap-add" not in words and "setpriv" not in words
    assert "--new-session" in words and "--die-with-parent" not in words, "a job outlives its agent"
    assert "--unshare-net" not in words, "ranks and driver meet at 127.0.0.1"


def test_a_job_without_peers_has_an_empty_network_and_its_own_hosts() -> None:
    words = line(own_network=True, hosts=Path("/home/ada/lab/var/agent/processes/sl-1.hosts"))
    assert "--unshare-net" in words and "--as-pid-1" in words and "--die-with-parent" not in words
    assert has(words, "--ro-bind", "/home/ada/lab/var/agent/processes/sl-1.hosts", "/etc/hosts")


def test_a_root_agent_gives_the_job_another_user_and_keeps_no_capability() -> None:
    words = line(is_root=True, owner=Owner(2_000_000_001, 2_000_000_001))
    end = words[words.index("--") + 1 :]
    assert end[:5] == ["setpriv", "--reuid", "2000000001", "--regid", "2000000001"]
    assert {"--clear-groups", "--inh-caps=-all", "--bounding-set=-all"} <= set(end) and end[-3:] == COMMAND
    assert set(sources(words, "--cap-add")) == {"CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"}
    for folder in ("/etc", "/etc/ssl", "/home", "/home/ada", "/home/ada/lab/runners", "/run"):
        assert has(words, "--perms", "0755", "--dir", folder), f"the job could not enter {folder}"


def test_where_proc_is_refused_the_machines_own_is_shown_read_only() -> None:
    words = line(replace(SANDBOX, own_processes=False))
    assert has(words, "--ro-bind", "/proc", "/proc") and not {"--unshare-pid", "--as-pid-1", "--proc"} & set(words)


def test_memory_for_temporary_files_is_limited_where_bubblewrap_can() -> None:
    assert has(line(), "--size", str(16 << 20), "--tmpfs", "/tmp") and has(
        line(), "--size", str(64 << 20), "--tmpfs", "/dev/shm"
    )
    old = line(Sandbox("bwrap"))
    assert has(old, "--tmpfs", "/dev/shm") and not {"--size", "--perms", "--disable-userns"} & set(old)


def test_only_the_gpus_of_the_job_are_there(tmp_path: Path) -> None:
    for number, uuid in enumerate(("GPU-a", "GPU-b")):
        (tmp_path / str(number)).mkdir()
        information = f"Model: \t\t X\nGPU UUID: \t {uuid}\nDevice Minor: \t {number + 4}\n"
        (tmp_path / str(number) / "information").write_text(information)
    assert gpu_devices(["GPU-b"], tmp_path) == ("/dev/nvidia5", *GPU_CONTROLS)
    assert "/dev/nvidia5" not in gpu_devices(["MIG-c"], tmp_path) and MIG_CAPABILITIES in gpu_devices(
        ["MIG-c"], tmp_path
    )
    words = line(devices=gpu_devices(["GPU-b"], tmp_path))
    assert has(words, "--dev-bind-try", "/dev/nvidia5", "/dev/nvidia5") and has(words, "--ro-bind", "/sys", "/sys")
    assert "/dev/nvidia4" not in words and "/dev/nvidiactl" not in line()


# What a Python needs


def test_a_virtual_environment_needs_itself_and_the_python_that_it_was_made_from(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    found = interpreters.required_paths(str(tmp_path / "env" / "bin" / "python"), [tmp_path / "home"])
    assert tmp_path / "env" in found.folders
    base = Path(sys.base_prefix).resolve()
    assert base in found.folders or base.is_relative_to("/usr")
    assert not any((tmp_path / "home").is_relative_to(folder) for folder in found.folders)


def test_links_on_the_way_to_a_python_are_followed(tmp_path: Path) -> None:
    """As uv leaves them in ~/.local/bin."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    bin_folder = tmp_path / "home" / ".local" / "bin"
    bin_folder.mkdir(parents=True)
    link = bin_folder / "python3"
    link.symlink_to(tmp_path / "env" / "bin" / "python")
    found = interpreters.required_paths(str(link), [tmp_path / "home"])
    assert (link, str(tmp_path / "env" / "bin" / "python")) in found.links
    assert not any(bin_folder.is_relative_to(folder) for folder in found.folders), "the whole home would be visible"


def test_a_python_in_the_home_itself_shows_its_libraries_and_not_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "lib" / "python3.11").mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "bin" / "python").touch()
    library = str(home / "lib" / "python3.11")
    paths = {"prefixes": [str(home)] * 4, "libraries": [library] * 2, "shared": ["", ""]}
    monkeypatch.setattr(interpreters, "_query", lambda python, modified: paths)
    found = interpreters.required_paths(str(home / "bin" / "python"), [home])
    assert set(found.folders) == {Path(library), home / "bin" / "python"}


def test_a_python_that_does_not_run_is_a_reason(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho it is broken >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ValueError, match="it is broken"):
        interpreters.required_paths(str(broken), [])


# Where it does not work


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bubblewrap 0.8 and an agent that is not root."""
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho bubblewrap 0.8.0\n")
    program.chmod(0o755)
    monkeypatch.setattr(confinement_check.shutil, "which", lambda name: str(program))
    monkeypatch.setattr(confinement_check.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(confinement_check, "KERNEL_SETTINGS", ())
    monkeypatch.setattr(confinement_check.compileall, "compile_dir", lambda *_, **__: True)
    monkeypatch.delenv("SCHEDULEARN_CONFINE", raising=False)
    return tmp_path


def refusing(monkeypatch: pytest.MonkeyPatch, works: Any) -> list[Sandbox]:
    tried: list[Sandbox] = []

    def refusal(sandbox: Sandbox, beside: Path) -> str:
        tried.append(sandbox)
        return "" if works(sandbox) else "bwrap: Can't mount proc"

    monkeypatch.setattr(confinement_check, "_refusal", refusal)
    return tried


def test_the_strictest_that_works_is_taken(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, lambda sandbox: True)
    found = find_confinement(machine)
    assert found.sandbox == Sandbox(str(machine / "bwrap"), True, False, own_network=True, sizes=True)
    assert found.problem is None and found.kind == Isolated()


def test_where_an_empty_network_is_refused_files_and_processes_are_confined_all_the_same(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, lambda sandbox: not sandbox.own_network)
    found = find_confinement(machine)
    assert found.sandbox is not None and found.sandbox.own_processes and not found.own_network
    assert found.problem is None and found.kind == FilesAndProcesses()


def test_where_only_proc_is_refused_files_are_confined_and_visible_processes_reported(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = refusing(monkeypatch, lambda sandbox: not sandbox.own_processes)
    found = find_confinement(machine)
    assert found.sandbox is not None and not found.sandbox.own_processes and not found.sandbox.nested_users
    assert [sandbox.own_processes for sandbox in tried] == [True, True, False, False]
    assert found.problem is not None and "see the processes of this machine" in found.problem.text
    assert found.kind == FilesOnly() and not found.problem.blocking


def test_without_bubblewrap_the_fix_is_to_install_it(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement_check.shutil, "which", lambda name: None)
    found = find_confinement(machine)
    assert found.sandbox is None and found.problem is not None and not found.problem.blocking
    assert "everything you can" in found.problem.text and "apt-get install bubblewrap" in found.problem.fix
    assert "Docker Engine" in found.problem.fix and found.kind == NotConfined()


def test_a_bubblewrap_that_does_not_work_is_a_reason_on_the_page_and_in_the_log(
    machine: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusing(monkeypatch, lambda sandbox: False)
    found = find_confinement(machine)
    assert found.sandbox is None and found.problem is not None and "Can't mount proc" in found.problem.fix
    assert "Jobs are not confined" in caplog.text


def test_a_setting_of_the_kernel_that_forbids_it_is_named(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, lambda sandbox: False)
    forbids = Path("/proc/sys/kernel/pid_max").read_text().strip()
    monkeypatch.setattr(
        confinement_check, "KERNEL_SETTINGS", (("kernel/missing", "1", "0"), ("kernel/pid_max", forbids, "7"))
    )
    found = find_confinement(machine)
    assert found.problem is not None and "sudo sysctl -w kernel.pid_max=7" in found.problem.fix


def test_a_root_that_cannot_give_files_away_is_a_reason(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container whose users are mapped, as without root."""

    def refused(*_: Any) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(confinement_check.os, "geteuid", lambda: 0)
    monkeypatch.setattr(confinement_check.os, "chown", refused)
    found = find_confinement(machine)
    assert found.sandbox is None and found.problem is not None and "Invalid argument" in found.problem.fix


def test_it_can_be_switched_off(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = refusing(monkeypatch, lambda sandbox: True)
    monkeypatch.setenv("SCHEDULEARN_CONFINE", "no")
    found = find_confinement(machine)
    assert found.sandbox is None and not tried and found.problem is not None
    assert "SCHEDULEARN_CONFINE" in found.problem.fix


def test_a_program_that_refuses_everything_is_found_out_by_trying(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    monkeypatch.setattr(confinement_check, "hidden_folders", lambda state: (machine,))
    found = find_confinement(machine)
    assert found.sandbox is None and found.problem is not None and "No permissions" in found.problem.fix


def test_a_build_has_no_network_and_ends_with_the_agent() -> None:
    words = line(isolated=True)
    assert "--unshare-net" in words and "--die-with-parent" in words and "--unshare-pid" in words
    assert "--as-pid-1" not in words, "bubblewrap ends it; a process with a new user id would not end by itself"
    assert "--unshare-net" not in line() and "--die-with-parent" not in line() and "--as-pid-1" in line()
