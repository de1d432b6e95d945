#!/bin/bash
python main.py --cache
code=$?
echo "training ended with $code"
exit $code
