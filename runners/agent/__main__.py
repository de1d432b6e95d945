"""``python -m runners.agent``: the program of a node (docs/admin/nodes.md)."""

import sys

from runners.agent.main import main

if __name__ == "__main__":
    sys.exit(main())
