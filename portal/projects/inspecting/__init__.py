"""Reads a code version without running it: a separate program, because parsing hostile code can crash a parser.

    the canonical tar on stdin  ->  a JSON guess on stdout

``program.py`` selects the files and assembles the guess, ``source.py`` makes a file's syntax tree easy to query,
``rules.py`` has the warnings: one function for each common mistake; ``entries.py`` has what ranks may run, for jobs too.
``launch_lines`` has the lines of other launchers, and ``launch_config``, a program of its own, reads a configuration file of one.
The package lists of the upload are read by ``portal/projects/package_lists/``.
"""
