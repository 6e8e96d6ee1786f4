"""A DDP script brought in by `coded.prepare`, with logs, evaluation, checkpoints and resuming."""

import argparse
import os

import codedgrad.torch as coded
import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

UNITS = 4  # micro-batches of the whole batch: one for each of 4 workers


def make_data(samples, seed):
    x = torch.randn(samples, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.square().sum(1, keepdim=True))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    losses = [F.mse_loss(model(x), y, reduction="sum").item() for x, y in loader]
    model.train()
    return sum(losses) / len(loader.dataset)


def save(path, model, optimizer, scheduler):
    parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler}
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**state, "next": model.run.index + 1}, path + ".new")
    os.replace(path + ".new", path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loader = DataLoader(make_data(1024, seed=2), batch_size=16, shuffle=True)
    validation = DataLoader(make_data(256, seed=3), batch_size=64)

    saved, first = None, 0
    if os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, weights_only=True)
        first = saved["next"]
        if first >= args.epochs * (len(loader.dataset) // (UNITS * loader.batch_size)):
            print("nothing is left to do", flush=True)
            return
        model.load_state_dict(saved["model"])  # before prepare, on every worker
    model, optimizer, loader, scheduler = coded.prepare(
        model, optimizer, loader, CosineAnnealingLR, epochs=args.epochs, units=UNITS, first=first
    )
    if saved is not None:
        # After prepare, which makes the scheduler: a new scheduler may set the learning rate.
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])

    run = model.run
    for epoch in range(first // len(loader), args.epochs):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            run.report(loss.detach())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if run.sync_gradients and run.saver:
                done = run.index + 1
                if done % args.every == 0:
                    print(f"step {done}: loss {run.totals[0] / UNITS:.4f}", flush=True)
                if run.leaving or done % args.every == 0:
                    save(args.checkpoint, model, optimizer, scheduler)
        if run.saver:
            print(f"epoch {epoch}: validation {evaluate(model, validation):.4f}", flush=True)
    print(f"digest {run.digest():016x}", flush=True)


if __name__ == "__main__":
    main()
