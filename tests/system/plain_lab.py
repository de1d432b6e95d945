"""A lab whose jobs are processes of this very Python: no engine, no environments, and an agent of its own."""

import sys
from pathlib import Path
from typing import Self

from tests.system.product import Product, wait_for

AGENT = """#!/bin/sh
[ "$2" = runners.agent ] && exec {python} -m tests.runners.plain_agent
exec {python} "$@"
"""


class PlainLab(Product):
    @classmethod
    def within(cls, folder: Path, **env: str) -> Self:
        """Return a lab whose data is in a new folder of ``folder``; ``env`` is added to the environment of its programs."""
        home = folder / "home"
        home.mkdir(mode=0o700)
        (home / "python").write_text(AGENT.format(python=sys.executable))
        (home / "python").chmod(0o700)
        values = {"SCHEDULEARN_UNSAFE_PROCESSES": "yes", "SCHEDULEARN_CPU_SLOTS": "3", **env}
        return cls.make(home, "process", **values)

    def start(self, name: str) -> None:
        if name != "agent":
            super().start(name)
            return
        real, sys.executable = sys.executable, str(self.home / "python")
        try:
            super().start(name)
        finally:
            sys.executable = real

    def wait_for_nodes(self) -> None:
        wait_for("the node is ready", lambda: any(node["gpus"] for node in self.get("nodes/")), 60)
