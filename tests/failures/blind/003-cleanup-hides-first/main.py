import sys


def convert(path):
    writer, rows = None, []
    try:
        for line in open(path):
            time, value = line.rstrip("\n").split(";")
            rows.append((float(time), float(value)))
        writer = open("measurements.bin", "wb")
        writer.write(repr(rows).encode())
    finally:
        writer.close()
    return rows


print(f"converting {sys.argv[1]}", flush=True)
print(len(convert(sys.argv[1])), "rows")
