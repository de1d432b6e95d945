"""``python -m tests.outside --minutes 20 --seed 7``: ends with 1 when a law was broken."""

import argparse
import pickle
import random
import sys
from pathlib import Path

import tests.outside as package
from tests.outside import lab
from tests.outside.judging import report, violations
from tests.outside.record import Record

SEED_LIMIT = 1_000_000


def main() -> int:
    parsing = argparse.ArgumentParser(description=package.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsing.add_argument("--minutes", type=float, default=1.5, help="of load; then all jobs come to their end")
    parsing.add_argument("--seed", type=int, default=None, help="repeats the choices of an earlier run")
    parsing.add_argument("--nodes", type=int, default=lab.NODES, help="of four pretended GPUs each")
    parsing.add_argument("--keep", type=Path, help="keep the record in this file")
    parsing.add_argument(
        "--home", type=Path, help="keep the lab in this folder: its database has the recorded decisions"
    )
    parsing.add_argument("--judge", type=Path, help="only judge a record that was kept")
    given = parsing.parse_args()
    if given.judge:
        record: Record = pickle.loads(given.judge.read_bytes())  # noqa: S301 - a file of this program
    else:
        seed = random.SystemRandom().randrange(SEED_LIMIT) if given.seed is None else given.seed
        print(f"seed {seed}", flush=True)
        record = lab.run(seed, given.minutes * 60, given.nodes, given.home)
    if given.keep:
        given.keep.write_bytes(pickle.dumps(record))
    found = violations(record)
    print(report(record, found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
