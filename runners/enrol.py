"""Where ``python -m runners.enrol`` was until it became ``runners.agent.enrol``: kept for one release."""

import sys

from runners.agent.enrol import main

if __name__ == "__main__":
    sys.stderr.write(
        "python -m runners.enrol is now python -m runners.agent.enrol; this name goes with the next release.\n"
    )
    sys.exit(main())
