"""``python -m tests.runners.plain_agent``: the agent with real processes, whose only environment is this very Python."""

import sys

from runners.agent import main
from runners.agent.environment_keeper import FakeEnvironments
from runners.agent.settings import NodeIdentity, Settings
from runners.environments.builds import Environments
from runners.host import egress
from runners.host.node_files import NodeFiles
from runners.runtime import ContainerRuntime
from runners.runtimes import confinement_check
from runners.runtimes.process import ProcessRuntime


def make_runtime(
    identity: NodeIdentity, files: NodeFiles, settings: Settings
) -> tuple[ContainerRuntime, Environments, None]:
    state = files.home / "processes"
    find = confinement_check.find_confinement
    runtime = ProcessRuntime(identity.installation, str(identity.node), state, lambda key: sys.executable, find)
    return runtime, FakeEnvironments(), None


if __name__ == "__main__":
    main.make_runtime = make_runtime
    egress.MACHINE_NETWORKS = ()  # the servers of tests listen on the loopback
    sys.exit(main.main())
