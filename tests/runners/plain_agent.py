"""``python -m tests.runners.plain_agent``: the agent with real processes, whose only environment is this very Python."""

import sys

from runners import agent, agent_settings, confinement_check
from runners.environment_keeper import AllReady
from runners.environments import Environments
from runners.nodefiles import NodeFiles
from runners.process_runtime import ProcessRuntime
from runners.runtime import ContainerRuntime


def make_runtime(
    identity: agent_settings.Identity, files: NodeFiles, ring_address: str = ""
) -> tuple[ContainerRuntime, Environments]:
    state = files.home / "processes"
    find = confinement_check.find
    runtime = ProcessRuntime(identity.installation, str(identity.node), state, lambda key: sys.executable, find)
    return runtime, AllReady()


if __name__ == "__main__":
    agent.make_runtime = make_runtime
    sys.exit(agent.main())
