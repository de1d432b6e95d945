"""The few lines of click that we need."""
import inspect
import sys


def command(function):
    names = list(inspect.signature(function).parameters)

    def run():
        values, words = {}, sys.argv[1:]
        while words:
            word = words.pop(0)
            name = word.removeprefix("--").replace("-", "_")
            if not word.startswith("--") or name not in names:
                close = [f"--{other}" for other in names if other.startswith(name[:3])]
                hint = f" Did you mean {close[0]}?" if close else ""
                print(f"Usage: {sys.argv[0].rpartition('/')[2]} [OPTIONS]", file=sys.stderr)
                print(f"Try '{sys.argv[0].rpartition('/')[2]} --help' for help.\n", file=sys.stderr)
                print(f"Error: No such option: {word}{hint}", file=sys.stderr)
                sys.exit(2)
            values[name] = words.pop(0)
        function(**values)
    return run
