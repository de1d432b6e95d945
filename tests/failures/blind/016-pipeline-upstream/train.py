import json
import sys

data = json.load(sys.stdin)
print(len(data["train"]), "samples")
