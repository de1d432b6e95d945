#!/bin/bash
# training of 12 May
EPOCHS=2

python main.py --epochs $EPOCHS --optimizer adam
