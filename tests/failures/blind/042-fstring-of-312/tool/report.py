"""One line about a run."""


def report(run):
    return f"lr {run["lr"]:.3f}, loss {run["loss"]:.3f}"
