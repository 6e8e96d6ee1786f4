"""Trains the small GPT of `nanogpt.py` as a worker of a coded run, sharded over the worker's processes.

`hsdp_plain.py` is the same file under PyTorch's HSDP, where a worker is a node: `diff hsdp_plain.py
hsdp_coded.py` shows that of the loop over batches only the line differs that says who prints. Both
print a SHA-256 of all parameters at the end: of two nodes of two processes it is the same.

    torchrun --nproc-per-node 4 hsdp_plain.py --nodes 2
    codedgrad run -n 2 torchrun --standalone --nproc-per-node 2 hsdp_coded.py
"""

import hashlib

import codedgrad.torch as coded
import nanogpt
import torch
import torch.distributed as dist
from ddp_plain import Windows, parser
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader


def parameters_hash(model):
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().full_tensor().numpy().tobytes())
    return sha.hexdigest()


def main():
    args = parser().parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dataset = Windows(args.context)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    model = nanogpt.GPT(args)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = nanogpt.make_optimizer(model, args)
    loader = DataLoader(dataset, batch_size=args.rows, shuffle=True, drop_last=True)
    given = model, optimizer, loader, CosineAnnealingLR
    told = {"epochs": args.epochs, "accumulate": args.accumulate, "mesh": mesh}
    model, optimizer, loader, scheduler = coded.prepare(*given, **told)
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(loader):
            model.set_requires_all_reduce((i + 1) % args.accumulate == 0)
            loss = model(x, y) / args.accumulate
            loss.backward()
            if (i + 1) % args.accumulate == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        if model.run.saver and dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    print(f"sha256 {parameters_hash(model)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
