"""Converts an upload to the canonical tar of a code version: a separate program, because uploads can be hostile.

    upload on stdin, its name on a descriptor  ->  tar on another descriptor  +  a JSON report on stdout

``archive.py`` runs it with limits on memory, time and file size (``portal/sandbox.py``). It needs only the standard library (and
jupytext and nbformat for notebooks), opens no path that an upload names, and keeps this order: read the list of the
archive's entries, leave out what no run needs (``names.py``), judge every name and type, follow links (``links.py``), and
only then read contents. Equal files give an equal tar, byte for byte: sorted, owner 0, time 0, mode 0644, or 0755 for
folders and executable files.
"""
