#!/bin/bash
set -e
chmod +x tools/convert.py
echo "converting"
./tools/convert.py corpus.txt > corpus.ids
python main.py corpus.ids
