"""Archives made by the tests: hostile ones that must be refused, odd and honest ones that must be accepted.

``hostile()``, ``odd()`` and ``honest()`` yield cases; big ones are made only when asked for their bytes.
"""

from tests.corpus.honest import honest
from tests.corpus.hostile import hostile
from tests.corpus.making import MIB, Case, Part, info, notebook, raw_zip, tar_of, zip_tree
from tests.corpus.odd import odd

__all__ = ["MIB", "Case", "Part", "honest", "hostile", "info", "notebook", "odd", "raw_zip", "tar_of", "zip_tree"]
