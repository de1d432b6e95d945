import sys

sys.stdout.buffer.write("Étiquettes préparées, lecture…\n".encode("latin-1", "replace"))
sys.stdout.flush()
names = {}
with open(sys.argv[1], encoding="utf-8") as file:
    for line in file:
        number, name = line.rstrip("\n").split(",", 1)
        names[int(number)] = name
print(len(names))
