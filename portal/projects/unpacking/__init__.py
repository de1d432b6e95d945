"""Turns an upload into the canonical tar of a code version: a program of its own, because uploads are hostile.

    upload on stdin, its name on a descriptor  ->  tar on another descriptor  +  a JSON account on stdout

``archive.py`` runs it with limits on memory, time and file size (``sandbox.py``). It needs nothing but the standard
library (and jupytext, for a notebook), opens no path that an upload names, and keeps this order: read what the archive
says it holds, judge every name and type, and only then read contents. Equal files give an equal tar, byte for byte:
sorted, owner 0, time 0, mode 0644 (folders 0755).
"""
