"""Answers git with the user and the token of a repository: ``python credential.py FILE get``, as its credential helper.

FILE is JSON: {"host", "user", "token"}. Another host, such as that of a redirect or a submodule, gets nothing. Only the standard
library is used, and nothing of ours: it runs on whatever Python a sandbox has, 3.11 or newer.
"""

import json
import sys


def answer(asked: dict[str, str], known: dict[str, str]) -> str:
    """Return what git reads; empty where the credentials do not apply."""
    if asked.get("protocol") != "https" or asked.get("host") != known["host"] or not known["token"]:
        return ""
    return f"username={known['user']}\npassword={known['token']}\n"


def main() -> None:
    if sys.argv[2:] != ["get"]:
        return  # nothing is stored, nothing erased
    asked = dict(line.rstrip("\n").split("=", 1) for line in sys.stdin if "=" in line)
    with open(sys.argv[1]) as file:
        sys.stdout.write(answer(asked, json.load(file)))


if __name__ == "__main__":
    main()
