"""The reference of the REST API, from the schema in ``docs/api/schema.yml``."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from portal.ops.reference import cell

Json = Mapping[str, Any]
METHODS = ("get", "post", "put", "patch", "delete")
PREFIX = "/api/v1"


@dataclass(frozen=True, slots=True)
class Part:
    """A page: the operations whose paths match, and what it begins with."""

    name: str
    title: str
    about: str
    paths: str


PARTS = (
    Part(
        "account",
        "Account, tokens and secrets",
        "Who the token belongs to, and the tokens and secrets of a user. Secrets of a project are with projects.",
        r"/(me|tokens|secrets)/",
    ),
    Part(
        "projects",
        "Projects and code",
        "Projects, their members, versions of code, repositories of Git, and the gallery.",
        r"/(projects|git-hosts|gallery)/",
    ),
    Part(
        "jobs",
        "Jobs",
        "Submit jobs, find them, act on them, and delete them.",
        r"/jobs/(\{job_id\}/((cancel|hold|release|retry|keep|stop-keeping)/)?)?$|/trash/",
    ),
    Part(
        "job-records",
        "What a job leaves",
        "History, attempts, log, curves, outputs and checkpoints of one job, and when it starts.",
        r"/jobs/\{job_id\}/(?!(cancel|hold|release|retry|keep|stop-keeping)/)[a-z]",
    ),
    Part(
        "nodes",
        "Nodes, GPUs and environments",
        "Machines and their GPUs, what these do now and did before, and the sets of packages for jobs.",
        r"/(nodes|gpus|occupancy|timeline|environments|allowed-hosts|images|registries)/",
    ),
    Part(
        "policies",
        "Policies and simulations",
        "The scheduling policy, its history, scheduling cycles, and simulations of the recent history.",
        r"/(policy|policies|cycles|simulations)/",
    ),
    Part(
        "schedules",
        "Schedules",
        "Jobs that are submitted again on chosen days, and what became of each day.",
        r"/schedules/",
    ),
    Part(
        "datasets",
        "Datasets",
        "Files that jobs read: datasets, their versions, and resumable uploads by [tus](https://tus.io).",
        r"/(datasets|uploads)/",
    ),
    Part(
        "notifications",
        "Notices and webhooks",
        "What a user is notified of, and the webhooks of the lab. Those of a project are with projects.",
        r"/(notices|webhooks)/",
    ),
    Part(
        "people",
        "Users, groups and the audit log",
        "For admins: who belongs to the lab and to which group, invitations, and what admins did.",
        r"/(users|groups|invitations|audit)/",
    ),
    Part(
        "sharing",
        "Queue, limits, reservations, usage",
        "How the lab is shared: who waits, who may have how much, who used how much, and what is stored.",
        r"/(queue|limits|reservations|usage|ledger|time-extensions|space|retention-rules)/",
    ),
)

INDEX = """# API reference

Every operation under `/api/v1/`, from the OpenAPI schema of this release. [The guide](../index.md) shows the usual ones with curl,
and [conventions](../conventions.md) has what holds for all: tokens, pages, errors, times.

A portal serves the same interactively at `/api/docs/`, and the schema at `/api/schema/`. The repository has it as
`docs/api/schema.yml`, for programs that generate clients.

| page | |
|---|---|
"""


COMMON = {
    "page": "A page number within the paginated result set.",
    "page_size": "Number of results to return per page.",
    "node": "The id of a node.",
    "user": "Only this user, by id.",
    "group": "Only this group, by id.",
    "project": "Only this project, by id.",
    "by": "What each line is about.",
}
"""The meaning of parameters that have none in the schema."""


def pages(path: Path) -> dict[str, str]:
    """Return the pages by their path below ``docs/api``."""
    schema = yaml.safe_load(path.read_text())
    found = {f"reference/{part.name}.md": _page(part, schema) for part in PARTS}
    rows = "".join(f"| [{part.title}]({part.name}.md) | {part.about} |\n" for part in PARTS)
    names = "\n".join(part.name for part in PARTS)
    return {"reference/index.md": f"{INDEX}{rows}\n```{{toctree}}\n:hidden:\n{names}\n```\n", **found}


def operations(part: Part, schema: Json) -> Iterator[tuple[str, str, Json]]:
    """Yield path, method and operation of what a page has."""
    for path, methods in schema["paths"].items():
        if re.fullmatch(f"{part.paths}.*", path.removeprefix(PREFIX)):
            for method in METHODS:
                if method in methods:
                    yield path, method, methods[method]


def _page(part: Part, schema: Json) -> str:
    writer = _Writer(schema["components"]["schemas"])
    lines = [
        f"# {part.title}",
        "",
        part.about,
        "",
        "All paths begin with `/api/v1`. [Conventions](../conventions.md).",
        "",
    ]
    for path, method, operation in operations(part, schema):
        lines += writer.operation(path, method, operation)
    lines += ["## Objects", "", "The bodies of requests and responses.", ""]
    lines += writer.objects()
    return "\n".join(lines)


class _Writer:
    """Writes operations, and remembers the objects that they name."""

    def __init__(self, components: Json) -> None:
        self.components = components
        self.named: list[str] = []

    def operation(self, path: str, method: str, operation: Json) -> list[str]:
        lines = [f"## `{method.upper()} {path.removeprefix(PREFIX)}`", "", _text(operation.get("description", "")), ""]
        if parameters := operation.get("parameters"):
            lines += ["| parameter | in | type | meaning |", "|---|---|---|---|"]
            for each in parameters:
                kind = self.type_of(each["schema"])
                required = " (required)" if each.get("required") and each["in"] != "path" else ""
                about = each.get("description") or each["schema"].get("description", "") or COMMON.get(each["name"], "")
                lines.append(f"| `{each['name']}` | {each['in']}{required} | {kind} | {cell(_text(about))} |")
            lines.append("")
        for media, content in operation.get("requestBody", {}).get("content", {}).items():
            lines.append(f"- **Body** ({media}): {self.type_of(content['schema'])}")
        for code, response in sorted(operation["responses"].items()):
            if code.startswith("2"):
                kinds = [
                    self._answer(media, content["schema"]) for media, content in response.get("content", {}).items()
                ]
                lines.append(f"- **{code}**: {' or '.join(kinds) or 'no body'}")
        refusals = sorted(code for code in operation["responses"] if not code.startswith("2"))
        return [*lines, f"- Refused with {', '.join(refusals)} ([errors](../conventions.md#errors))", ""]

    def _answer(self, media: str, schema: Json) -> str:
        if media != "application/json":
            return media
        name = schema.get("$ref", "").rpartition("/")[2]
        if name.startswith("Paginated"):
            rows = self.components[name]["properties"]["results"]
            return f"[a page](../conventions.md#pages) of {self.type_of(rows['items'])}"
        return self.type_of(schema)

    def objects(self) -> list[str]:
        """Return a table for each named object, and for those that they contain."""
        lines: list[str] = []
        done: set[str] = set()
        while todo := [name for name in self.named if name not in done]:
            for name in todo:
                done.add(name)
                lines += self._object(name)
        return lines

    def _object(self, name: str) -> list[str]:
        component = self.components[name]
        lines = [f"### {name}", ""]
        if about := component.get("description"):
            lines += [_text(about), ""]
        required = set(component.get("required", ())) if name.endswith("Request") else set()
        lines += ["| field | type | meaning |", "|---|---|---|"]
        for field, schema in component.get("properties", {}).items():
            kind = self.type_of(schema) + (", required" if field in required else "")
            lines.append(f"| `{field}` | {kind} | {cell(_text(schema.get('description', '')))} |")
        return [*lines, ""]

    def type_of(self, schema: Json) -> str:
        """Return the type of a value in words; an object is a link to its table."""
        for key in ("allOf", "oneOf"):
            if key in schema:
                kinds = [self.type_of(each) for each in schema[key]]
                return self._nullable(" or ".join(kind for kind in kinds if kind), schema)
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            component = self.components[name]
            if "properties" not in component:
                return self.type_of(component)
            if name not in self.named:
                self.named.append(name)
            return f"[{name}](#{name.lower()})"
        if "enum" in schema:
            values = [each for each in schema["enum"] if each not in ("", None)]
            if any(f"-{value}" in values for value in values):
                values = [value for value in values if not value.startswith("-")]
            return self._nullable(", ".join(f"`{value}`" for value in values) or "empty", schema)
        return self._nullable(self._plain(schema), schema)

    def _plain(self, schema: Json) -> str:
        if schema.get("type") == "array":
            return f"list of {self.type_of(schema['items'])}"
        if schema.get("type") == "object":
            inner = schema.get("additionalProperties")
            return f"object of {self.type_of(inner)}" if inner and self.type_of(inner) != "any" else "object"
        kinds = {"date-time": "time", "date": "day", "binary": "bytes", "decimal": "number as text", "double": "number"}
        name = str(schema.get("type", "any"))
        kind = kinds.get(schema.get("format", "")) or ("true or false" if name == "boolean" else name)
        bounds = [str(schema[key]) for key in ("minimum", "maximum") if key in schema and abs(schema[key]) < 1e9]
        if len(bounds) == 2:
            return f"{kind}, {bounds[0]} to {bounds[1]}"
        return f"{kind}, at most {schema['maxLength']} characters" if "maxLength" in schema else kind

    @staticmethod
    def _nullable(kind: str, schema: Json) -> str:
        return f"{kind} or null" if schema.get("nullable") else kind


def _text(text: str) -> str:
    """Return a docstring as Markdown, without the list of values that the schema adds, and without Django's own help texts."""
    text = re.split(r"\n?^\* `", text, maxsplit=1, flags=re.MULTILINE)[0]
    text = "" if text.startswith("Required. 150 characters") else text
    text = re.sub(r"``([^`]*)``", r"`\1`", text)
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[").replace("_", "\\_")
