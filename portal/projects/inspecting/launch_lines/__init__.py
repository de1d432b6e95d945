"""Translates the command lines of other launchers, such as ``torchrun --nproc_per_node 4 train.py``, to what a job has.

``translation`` has the result, ``shell_words`` reads the line, ``options`` the options of a launcher by its table, and one
module for each family of launchers has the tables. Pure, and standard library only: inspection uses it, too.
"""

from .lines import TOOLS, tool_of, translate
from .translation import Translation, UntranslatableError

__all__ = ["TOOLS", "Translation", "UntranslatableError", "tool_of", "translate"]
