import argparse
import asyncio
import pathlib

parser = argparse.ArgumentParser()
parser.add_argument("--shards", type=pathlib.Path, required=True)
arguments = parser.parse_args()


def read(path):
    rows = path.read_text().split()
    if len(rows) != 20:
        raise ValueError(f"{path} has {len(rows)} rows, expected 20")
    return [float(row) for row in rows]


async def load():
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(asyncio.to_thread(read, path)) for path in sorted(arguments.shards.iterdir())]
    return [task.result() for task in tasks]


print("reading shards", flush=True)
data = asyncio.run(load())
print(len(data), "shards")
