#!/bin/bash
set -euo pipefail
echo "== prepare and train"
python prepare.py | python train.py
echo "== done"
