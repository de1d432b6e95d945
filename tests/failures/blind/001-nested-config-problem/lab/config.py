import functools
import json
import operator


class Config:
    class Problem(Exception):
        """What is wrong with a configuration."""

    NEEDED = ("model.width", "optimizer.lr", "epochs")

    def __init__(self, path):
        with open(path) as file:
            values = json.load(file)
        self.values, problems, first = {}, [], None
        for key in self.NEEDED:
            try:
                self.values[key] = functools.reduce(operator.getitem, key.split("."), values)
            except KeyError as error:
                problems.append(f"{key} is missing")
                first = first or error
        if problems:
            lines = "".join(f"\n  - {problem}" for problem in problems)
            raise Config.Problem(f"{len(problems)} problems in {path}:{lines}") from first
