#!/bin/bash
# as on our old cluster
export TOKENIZERS_PARALLELISM=false
echo "starting on $(hostname)"
accelerate launch --num_processes 1 main.py
