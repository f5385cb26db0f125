#!/bin/bash
# The environment and the launch of guide S4: two nodes of 8 H800, InfiniBand, ZeRO-3; at the end its advice for failures.
export NCCL_IB_DISABLE=0
export NCCL_IB_HCA=mlx5
export NCCL_SOCKET_IFNAME=ib0
export NCCL_NET_GDR_LEVEL=5
export NCCL_IB_GID_INDEX=3  # RoCE
export NCCL_IB_TIMEOUT=22
export NCCL_IB_RETRY_CNT=7
export NCCL_CROSS_NIC=0
export NCCL_P2P_LEVEL=SYS
export NCCL_BUFFSIZE=8388608
export NCCL_NTHREADS=640
export OMP_NUM_THREADS=8
export CUDA_LAUNCH_BLOCKING=0
NNODES=${NNODES:-1}
MASTER_PORT="${MASTER_PORT:-29500}"
torchrun --nnodes=$NNODES --nproc_per_node=${NPROC_PER_NODE:-8} \
  --node_rank=${NODE_RANK:-0} --master_addr=${MASTER_ADDR:-localhost} --master_port=$MASTER_PORT \
  train.py --deepspeed zero3.json --ddp_timeout 7200 --ddp_find_unused_parameters False \
  --save_steps 500 --save_total_limit 2 --max_retries 3
export NCCL_IB_TIMEOUT=30
export NCCL_ASYNC_ERROR_HANDLING=1
