"""What Jupyter and Colab give to a notebook, as code that goes before its cells."""

DISPLAY = """\
def display(*values, **_options):
    print(*values, sep="\\n")
"""
IPYTHON = """\
try:
    import IPython.display
except ImportError:  # this environment has no Jupyter: what it would show is printed
    import sys, types

    class _Shown(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *values, **_options: print(*values) if name == "display" else None

    sys.modules["IPython"] = types.ModuleType("IPython")
    sys.modules["IPython.display"] = sys.modules["IPython"].display = _Shown("IPython.display")
"""
SHOW = """\
def _show_value(value):
    if value is not None:
        text = repr(value)
        print(text if len(text) <= 20_000 else f"{text[:20_000]}… ({len(text):,} characters)")
"""
COLAB = """\
try:
    import google.colab
except ImportError:  # this is not Colab: what the notebook asks of it does nothing
    import os, sys, types

    class _Colab(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return _Colab(f"{self.__name__}.{name}")

        def __call__(self, *values, **_options):
            if self.__name__ == "google.colab.userdata.get":
                return os.environ.get(values[0])
            return {} if self.__name__ == "google.colab.files.upload" else None

    try:
        import google
    except ImportError:
        google = sys.modules["google"] = types.ModuleType("google")
        google.__path__ = []
    for _name in ("drive", "files", "userdata", "output", "patches", "data_table", "widgets"):
        sys.modules[f"google.colab.{_name}"] = _Colab(f"google.colab.{_name}")
    google.colab = sys.modules["google.colab"] = _Colab("google.colab")
"""
LOOP = """\
_loop = asyncio.new_event_loop()
asyncio.set_event_loop(_loop)
"""
