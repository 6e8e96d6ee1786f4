"""A training script in nanoGPT's shape: no loader, batches at random, the learning rate by hand."""

import os
import sys
import time

import torch
import torch.distributed as dist
from nanogpt import DATA, GPT, parameters_hash, windows
from torch.nn.parallel import DistributedDataParallel as DDP
from types import SimpleNamespace

context, rows, accumulation, max_iters = 16, 2, 2, 12
args = SimpleNamespace(context=context, layers=1, heads=2, width=16, dropout=0.1)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1337 + rank)


def get_batch():
    return windows(torch.randint(len(DATA) - context, (rows,)).tolist(), context)


def get_lr(it):
    return 1e-2 * (it + 1) / 4 if it < 4 else 1e-2 * (1 - it / max_iters)


model = GPT(args)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
iter_num = 0
model = DDP(model)
while True:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    for micro_step in range(accumulation):
        model.require_backward_grad_sync = micro_step == accumulation - 1
        x, y = get_batch()
        loss = model(x, y) / accumulation
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if rank == 0:
        print(f"iter {iter_num}: lr {lr:.5f}", flush=True)
    time.sleep(float(os.environ.get("PAUSE", "0")))
    iter_num += 1
    if iter_num >= max_iters:
        break
print(f"sha256 {parameters_hash(model)}", flush=True)
dist.destroy_process_group()
