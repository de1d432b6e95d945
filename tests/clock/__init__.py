"""Wall clocks of processes that tests set, while they run, away from that of the machine."""

import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

SOURCE = Path(__file__).with_name("shifted.c")


class ShiftedClock:
    """The clock of all processes that are started with ``env``. Needs a C compiler."""

    def __init__(self, folder: Path) -> None:
        library = folder / "shifted_clock.so"
        self.file, self.ahead = folder / "ahead", 0
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        self.file.write_bytes(bytes(8))
        self.env = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(self.file)}

    def set(self, ahead: int) -> None:
        """Set the clock ``ahead`` seconds before that of the machine, behind it if negative. It takes effect at once."""
        self.ahead = ahead
        with self.file.open("r+b") as file:
            file.write(ahead.to_bytes(8, "little", signed=True))

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time() + self.ahead, UTC)
