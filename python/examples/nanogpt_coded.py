"""Trains a small GPT on the characters of a few sonnets.

`nanogpt.py` is a plain PyTorch loop in one process. `nanogpt_coded.py` is the same file as a worker
of a coded run: `diff nanogpt.py nanogpt_coded.py` shows the five lines that differ. At the end both
print a SHA-256 of all parameters. The coded one's is the same however many workers took part and
whoever of them was late or lost. The plain one's is another, since a coded run seeds PyTorch anew
for each micro-batch and adds their gradients in another order.
"""

import argparse
import hashlib
import math
from typing import List, Tuple

import codedgrad.torch as coded
import torch
from torch import nn
from torch.nn import functional as F

TEXT = """
From fairest creatures we desire increase,
That thereby beauty's rose might never die,
But as the riper should by time decease,
His tender heir might bear his memory:
But thou contracted to thine own bright eyes,
Feed'st thy light's flame with self-substantial fuel,
Making a famine where abundance lies,
Thy self thy foe, to thy sweet self too cruel:
Thou that art now the world's fresh ornament,
And only herald to the gaudy spring,
Within thine own bud buriest thy content,
And tender churl mak'st waste in niggarding:
Pity the world, or else this glutton be,
To eat the world's due, by the grave and thee.

Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date:
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimmed,
And every fair from fair sometime declines,
By chance, or nature's changing course untrimmed:
But thy eternal summer shall not fade,
Nor lose possession of that fair thou ow'st,
Nor shall death brag thou wander'st in his shade,
When in eternal lines to time thou grow'st,
So long as men can breathe, or eyes can see,
So long lives this, and this gives life to thee.

When to the sessions of sweet silent thought
I summon up remembrance of things past,
I sigh the lack of many a thing I sought,
And with old woes new wail my dear time's waste:
Then can I drown an eye, unused to flow,
For precious friends hid in death's dateless night,
And weep afresh love's long since cancelled woe,
And moan the expense of many a vanished sight:
Then can I grieve at grievances foregone,
And heavily from woe to woe tell o'er
The sad account of fore-bemoaned moan,
Which I new pay as if not paid before.
But if the while I think on thee, dear friend,
All losses are restored and sorrows end.
"""
CHARACTERS = sorted(set(TEXT))
DATA = torch.tensor([CHARACTERS.index(character) for character in TEXT])


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Trains a small GPT on a few sonnets.")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps")
    parser.add_argument("--units", type=int, default=8, help="micro-batches of a step")
    parser.add_argument("--rows", type=int, default=8, help="sequences of a micro-batch")
    parser.add_argument("--context", type=int, default=32, help="characters of a sequence")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--warmup", type=int, default=10, help="steps to the highest rate")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of a gradient")
    parser.add_argument("--every", type=int, default=20, help="steps between two losses shown")
    return parser


def arguments() -> argparse.Namespace:
    return options().parse_args()


class Block(nn.Module):
    """Attention to what came before, then a network for each place, both with a residual."""

    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.heads, self.dropout = args.heads, args.dropout
        self.before_attention = nn.LayerNorm(args.width)
        self.attention = nn.Linear(args.width, 3 * args.width)
        self.joined = nn.Linear(args.width, args.width)
        self.before_network = nn.LayerNorm(args.width)
        self.network = nn.Sequential(
            nn.Linear(args.width, 4 * args.width), nn.GELU(), nn.Linear(4 * args.width, args.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, places, width = x.shape
        parts = self.attention(self.before_attention(x)).split(width, dim=2)
        q, k, v = (part.view(rows, places, self.heads, -1).transpose(1, 2) for part in parts)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y = self.joined(y.transpose(1, 2).reshape(rows, places, width))
        x = x + F.dropout(y, self.dropout, self.training)
        return x + F.dropout(self.network(self.before_network(x)), self.dropout, self.training)


class GPT(nn.Module):
    """Gives the loss of predicting `y`, each the character after one of `x`."""

    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), args.width)
        self.places = nn.Embedding(args.context, args.width)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.last = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, len(CHARACTERS), bias=False)
        self.head.weight = self.characters.weight
        for name, parameter in self.named_parameters():
            if name.endswith("weight") and parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.characters(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.last(h))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def windows(starts: List[int], context: int) -> Tuple[torch.Tensor, torch.Tensor]:
    x = torch.stack([DATA[start : start + context] for start in starts])
    y = torch.stack([DATA[start + 1 : start + 1 + context] for start in starts])
    return x, y


def get_batch(args: argparse.Namespace) -> Tuple[torch.Tensor, torch.Tensor]:
    """Sequences from random places, drawn from PyTorch's own generator."""
    starts = torch.randint(len(DATA) - args.context, (args.rows,))
    return windows(starts.tolist(), args.context)


def whole_loss(model: GPT, args: argparse.Namespace) -> float:
    """The loss on all of the text."""
    model.eval()
    with torch.no_grad():
        x, y = windows(list(range(0, len(DATA) - args.context, args.context)), args.context)
        loss = model(x, y).item()
    model.train()
    return loss


def make_optimizer(model: GPT, args: argparse.Namespace) -> torch.optim.Optimizer:
    """AdamW that lets matrices decay, and nothing else."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.95))


def make_scheduler(
    optimizer: torch.optim.Optimizer, args: argparse.Namespace
) -> torch.optim.lr_scheduler.LambdaLR:
    """Up in a straight line, then down to a tenth by a cosine."""

    def factor(step: int) -> float:
        if step < args.warmup:
            return (step + 1) / args.warmup
        done = (step - args.warmup) / max(1, args.steps - args.warmup)
        return 0.55 + 0.45 * math.cos(math.pi * min(1.0, done))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def parameters_hash(model: nn.Module) -> str:
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().numpy().tobytes())
    return sha.hexdigest()


def main() -> None:
    args = arguments()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = GPT(args)
    optimizer = make_optimizer(model, args)
    scheduler = make_scheduler(optimizer, args)
    run = coded.join(model, optimizer, units=args.units, steps=args.steps, state={"lr": scheduler})
    for step in run:
        for micro in step:
            x, y = get_batch(args)
            loss = model(x, y)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if scheduler.last_epoch % args.every == 0:
            print(f"step {scheduler.last_epoch}: loss {whole_loss(model, args):.4f}", flush=True)
    print(f"loss {whole_loss(model, args):.4f}, sha256 {parameters_hash(model)}", flush=True)


if __name__ == "__main__":
    main()
