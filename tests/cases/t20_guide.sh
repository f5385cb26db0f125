#!/bin/bash
# The environment and the launch of guide S2: one T20 server with 8 cards.
export WORLD_SIZE=8
export MASTER_ADDR=127.0.0.1
export MASTER_PORT=29500
export ECCL_BACKEND=eccl
export ECCL_DEVICE_TYPE=gcu
torchrun --standalone --nnodes=1 --nproc_per_node=8 --master_addr=127.0.0.1 --master_port=29500 scripts/train.py configs/dinov3.py
