"""Reads the packages that an upload asks for, and keeps only what is safe to give to a resolver.

    requirements.txt, pyproject.toml, environment.yml, or what a person typed  ->  a PackageList

A resolver obeys option lines, addresses and paths in such files: it would ask hosts that a user names, read files of the
machine, or run code to learn what a package needs. So each line is parsed here, only ``NAME[extras] VERSIONS ; marker`` is
accepted and written again from what was parsed, and everything else is refused with a sentence. Addresses are accepted only
below those that an admin has allowed (``sources.py``).

``reading.py`` and ``typed.py`` are where to begin; ``requirement_line.py`` judges one line; ``finding.py`` chooses the files of
an upload; ``imports.py`` knows which package has an imported module. No Django: inspection runs this on hostile data in a
separate process (``portal/sandbox.py``). No function raises for any data.
"""
