#!/opt/conda/envs/nlp/bin/python
import sys

print(*[len(word) for word in open(sys.argv[1]).read().split()])
