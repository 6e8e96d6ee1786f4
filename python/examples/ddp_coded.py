"""Trains the small GPT of `nanogpt.py` as a worker of a coded run.

`ddp_plain.py` is the same file under DistributedDataParallel: `diff ddp_plain.py ddp_coded.py` shows
that no line of the loop over batches differs. Both print a SHA-256 of all parameters at the end: of
two processes it is the same.

    torchrun --nproc-per-node 2 ddp_plain.py
    codedgrad run -n 2 python ddp_coded.py
"""

import argparse

import codedgrad.torch as coded
import nanogpt
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    """Places of the text, each with the characters that follow."""

    def __init__(self, context):
        self.context = context

    def __len__(self):
        return (len(nanogpt.DATA) - self.context - 1) // 4

    def __getitem__(self, number):
        x, y = nanogpt.windows([4 * number], self.context)
        return x[0], y[0]


def parser():
    found = argparse.ArgumentParser(description="Trains a small GPT on a few sonnets.")
    found.add_argument("--epochs", type=int, default=5)
    found.add_argument("--rows", type=int, default=8, help="sequences of a batch of one process")
    found.add_argument("--accumulate", type=int, default=1, help="batches of one process in a step")
    for name, default in [("context", 32), ("layers", 2), ("heads", 4), ("width", 64)]:
        found.add_argument(f"--{name}", type=int, default=default)
    for name, default in [("rate", 3e-3), ("clip", 1.0), ("dropout", 0.0)]:
        found.add_argument(f"--{name}", type=float, default=default)
    return found


def main():
    args = parser().parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dataset = Windows(args.context)
    model = nanogpt.GPT(args)
    optimizer = nanogpt.make_optimizer(model, args)
    loader = DataLoader(dataset, batch_size=args.rows, shuffle=True, drop_last=True)
    given = model, optimizer, loader, CosineAnnealingLR
    told = {"epochs": args.epochs, "accumulate": args.accumulate}
    model, optimizer, loader, scheduler = coded.prepare(*given, **told)
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(loader):
            model.require_backward_grad_sync = (i + 1) % args.accumulate == 0
            loss = model(x, y) / args.accumulate
            loss.backward()
            if (i + 1) % args.accumulate == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        if model.run.saver:
            print(f"epoch {epoch}: loss {nanogpt.whole_loss(model, args):.4f}", flush=True)
    print(f"sha256 {nanogpt.parameters_hash(model)}", flush=True)


if __name__ == "__main__":
    main()
