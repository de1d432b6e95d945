"""A Docker Engine of the test's own, beside the one that other tests share: it may be killed and started again."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

START_SECONDS = 60


class OwnEngine:
    """Without a bridge and firewall rules of its own: jobs with ``--network none`` are all it has to run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/docker.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        dockerd = shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin")
        assert dockerd, "apt-get install docker.io"
        (self.folder / "daemon.json").write_text("{}")  # this machine's own would be read otherwise
        argv = [
            *("unshare", "--net"),  # without a bridge of its own, it would delete that of the shared engine
            dockerd,
            f"--config-file={self.folder}/daemon.json",
            "--live-restore",
            "--bridge=none",
            "--iptables=false",
        ]
        argv.append(f"--host={self.url}")
        places = [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/pid"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*argv, *places], stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + START_SECONDS
        while self.docker("version", check=False).returncode:
            log_end = (self.folder / "log").read_text(errors="replace")[-1000:]
            assert time.monotonic() < until and self.process.poll() is None, f"dockerd did not come up: {log_end}"
            time.sleep(0.1)

    def kill(self) -> None:
        """kill -9. Its containerd dies with it; a start before that is done would fail."""
        assert self.process is not None
        containerd = self.folder / "exec" / "containerd" / "containerd.pid"
        pid = int(containerd.read_text()) if containerd.exists() else 0
        self.process.kill()
        self.process.wait()
        until = time.monotonic() + 20
        while pid and Path(f"/proc/{pid}").exists() and time.monotonic() < until:
            time.sleep(0.05)
        for stale in (self.folder / "pid", containerd):
            stale.unlink(missing_ok=True)

    def stop(self) -> None:
        running = self.docker("ps", "-aq", check=False).stdout.split()
        if running:
            self.docker("rm", "-f", *(each.decode() for each in running), check=False)
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
        for place in reversed(
            self._mounts()
        ):  # with live-restore it leaves its root mounted, which keeps the folder from being deleted
            subprocess.run(["umount", "--lazy", place], check=False)

    def _mounts(self) -> list[str]:
        places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        return sorted(place for place in places if place.startswith(f"{self.folder}/"))

    def docker(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["docker", "-H", self.url, *args], capture_output=True, check=check, timeout=300)

    def take_over(self, images: Sequence[str]) -> None:
        """Copies images from the shared engine; their ids stay the same."""
        with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as saving:
            loading = ["docker", "-H", self.url, "load", "-q"]
            subprocess.run(loading, stdin=saving.stdout, stdout=subprocess.DEVNULL, check=True, timeout=300)
