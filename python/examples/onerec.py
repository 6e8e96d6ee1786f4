"""A generative recommender, which is no language model, through the same five lines.

After OneRec (arXiv 2506.13695): items are three codes each, found by k-means on what the level
before left over; an encoder reads what a user has seen, and a decoder with experts says the codes
of what comes next. The users are invented: `World` draws them by a rule, so that the entropy of the
next item is known and no model can do better in the mean, the *floor*.

`codedgrad run -n 4 --scheme groups:s=1 onerec.py --seed 1 --json` prints one line per worker, all
with the same numbers, which are those of `python onerec.py --seed 1 --json` alone.
"""

import argparse
import json
import math
from typing import Any, Dict, List, Sequence, Tuple

import codedgrad.torch as coded
import numpy as np
import torch
from moe import Balance, Experts, parse_experts, replica_hash
from torch import nn
from torch.nn import functional as F

TOPICS, SUBTOPICS, RANKS, EVENTS = 4, 4, 16, 17
ITEMS = TOPICS * SUBTOPICS * RANKS
LEVELS, CODES, ITERATIONS = 3, 16, 20
UNITS, RECORDS, VALIDATION = 16, 4, 2000
ZIPF = 1 / np.arange(1.0, RANKS + 1) / np.sum(1 / np.arange(1.0, RANKS + 1))
# What a user looks at: 16 places of 3 codes and the two topics in front.
OLD, POSITIVE, SHORT = 8, 4, 4


def entropy(p: np.ndarray) -> np.ndarray:
    """In nats, over the last axis."""
    return -np.sum(p * np.log(np.where(p > 0, p, 1)), -1)


def vectors(seed: int) -> np.ndarray:
    """An item is near those of its subtopic, and these near those of their topic."""
    draw = np.random.default_rng(seed).standard_normal
    topics, subtopics, own = draw((TOPICS, 32)), draw((TOPICS, SUBTOPICS, 32)), draw((ITEMS, 32))
    shared = 4 * topics[:, None] + 2 * subtopics
    return (shared.reshape(-1, 32).repeat(RANKS, 0) + own).astype(np.float32)


class Ids:
    """Items as three codes each: k-means, then k-means on the differences, and once more."""

    def __init__(self, x: np.ndarray, seed: int):
        rng, rest, books, codes, mse = np.random.default_rng([seed, 1]), x, [], [], []
        for _ in range(LEVELS):
            book = self._first(rest, rng)
            for _ in range(ITERATIONS):
                nearest = self._nearest(rest, book)
                for code in set(nearest.tolist()):
                    book[code] = rest[nearest == code].mean(0)
            codes.append(self._nearest(rest, book))
            rest = rest - book[codes[-1]]
            books.append(book)
            mse.append(round(float(np.mean(rest**2)), 4))
        self.books, self.codes, self.rest = np.stack(books), np.stack(codes, 1), rest
        # Which items have the same codes.
        triples, self.number = np.unique(self.codes, axis=0, return_inverse=True)
        self.distinct = len(triples)
        used = [len(set(level.tolist())) for level in codes]
        collisions = round(1 - self.distinct / len(x), 4)
        self.summary = {"used": used, "collisions": collisions, "mse": mse}

    @staticmethod
    def _nearest(x: np.ndarray, book: np.ndarray) -> np.ndarray:
        return np.argmin(((x[:, None] - book) ** 2).sum(2), 1)

    @staticmethod
    def _first(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """k-means++: each centre is an item, the likelier the farther from those before."""
        book = x[rng.integers(len(x), size=1)]
        while len(book) < CODES:
            far = ((x[:, None] - book) ** 2).sum(2).min(1).astype(np.float64)
            book = np.concatenate([book, x[[rng.choice(len(x), p=far / far.sum())]]])
        return book

    def of(self, items: np.ndarray) -> np.ndarray:
        """The codes of items."""
        wrong = items[(items < 0) | (items >= len(self.codes))]
        if wrong.size:
            last = len(self.codes) - 1
            raise ValueError(f"item {wrong.flat[0]} is not there: items are 0 to {last}")
        return self.codes[items]


def records(keys: Sequence[Sequence[int]]) -> Tuple[np.ndarray, np.ndarray]:
    """Users as their two topics, and the items that each has seen one after the other. A record
    depends on its key alone, so that any worker can make it."""
    draws = np.stack([np.random.default_rng(key).random(2 + 4 * EVENTS) for key in keys])
    a = (draws[:, 0] * TOPICS).astype(int)
    b = (a + 1 + (draws[:, 1] * (TOPICS - 1)).astype(int)) % TOPICS
    topic = subtopic = np.zeros(len(keys), int)
    seen = []
    for event in range(EVENTS):
        goes_on, which, other, rank = draws[:, 2 + 4 * event : 6 + 4 * event].T
        fresh = (goes_on >= 0.8) | (event == 0)
        subtopic = np.where(fresh, (other * SUBTOPICS).astype(int), (subtopic + 1) % SUBTOPICS)
        topic = np.where(fresh, np.where(which < 0.7, a, b), topic)
        ranks = np.minimum(np.searchsorted(np.cumsum(ZIPF), rank, side="right"), RANKS - 1)
        seen.append((topic * SUBTOPICS + subtopic) * RANKS + ranks)
    return np.stack([a, b], 1), np.stack(seen, 1)


def next_item(users: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The probability of every item after the last one: the rule of `records`."""
    topic, subtopic = np.divmod(np.arange(TOPICS * SUBTOPICS), SUBTOPICS)
    was, step = last[:, None] // (SUBTOPICS * RANKS), last[:, None] // RANKS % SUBTOPICS
    p = 0.8 * ((topic == was) & (subtopic == (step + 1) % SUBTOPICS))
    p = p + 0.2 * (0.7 * (topic == users[:, :1]) + 0.3 * (topic == users[:, 1:])) / SUBTOPICS
    return (p[:, :, None] * ZIPF).reshape(len(last), ITEMS)


def entropies(ids: Ids, users: np.ndarray, seen: np.ndarray) -> Tuple[float, float]:
    """Of the next item's codes: known who it is and what came last, and not known."""
    same = np.eye(ids.distinct)[ids.number.reshape(-1)]
    marginal = np.tile(ZIPF, TOPICS * SUBTOPICS) / (TOPICS * SUBTOPICS)
    floor = entropy(next_item(users, seen[:, -2]) @ same).mean()
    return float(floor), float(entropy(marginal @ same))


def rows(ids: Ids, users: np.ndarray, seen: np.ndarray) -> torch.Tensor:
    """What the model reads: two topics, then codes of items; the last item is what it is to say."""
    liked = np.full((len(seen), POSITIVE, LEVELS), CODES)
    for row, (user, items) in enumerate(zip(users, seen[:, :-1])):
        own = ids.of(items[items // (SUBTOPICS * RANKS) == user[0]][-POSITIVE:])
        liked[row, POSITIVE - len(own) :] = own
    codes = ids.of(seen)
    parts = [codes[:, :OLD], liked, codes[:, -1 - SHORT :]]
    flat = [np.reshape(part, (len(seen), -1)) for part in parts]
    return torch.from_numpy(np.concatenate([users, *flat], 1))


def matrix(*shape: int, ends: bool = False) -> nn.Parameter:
    """Those that end one of the two times four branches begin smaller."""
    return nn.Parameter(torch.randn(*shape) * (0.02 / math.sqrt(8) if ends else 0.02))


def norm(width: int) -> nn.RMSNorm:
    return nn.RMSNorm(width, eps=1e-5)


class SwiGLU(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gate, self.up = matrix(width, 2 * width), matrix(width, 2 * width)
        self.down = matrix(2 * width, width, ends=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (F.silu(x @ self.gate) * (x @ self.up)) @ self.down


class Attention(nn.Module):
    def __init__(self, width: int, causal: bool = False):
        super().__init__()
        self.q, self.k, self.v = (matrix(width, width) for _ in range(3))
        self.out, self.causal = matrix(width, width, ends=True), causal

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        parts = (x @ self.q, seen @ self.k, seen @ self.v)
        q, k, v = (part.unflatten(2, (2, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return y.transpose(1, 2).flatten(2) @ self.out


class Block(nn.Module):
    """Attention, to what was encoded as well if it decodes, then a network for each place."""

    def __init__(self, width: int, network: nn.Module, decodes: bool):
        super().__init__()
        self.attention, self.before = Attention(width, causal=decodes), norm(width)
        self.cross, self.before_cross = None, None
        if decodes:
            self.cross, self.before_cross = Attention(width), norm(width)
        self.network, self.before_network = network, norm(width)

    def forward(self, x: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
        own = self.before(x)
        x = x + self.attention(own, own)
        if self.cross is not None and self.before_cross is not None:
            x = x + self.cross(self.before_cross(x), encoded)
        return x + self.network(self.before_network(x))


class Recommender(nn.Module):
    """Gives the loss of the last item's codes, in nats an item."""

    def __init__(self, width: int, experts: int, active: int):
        super().__init__()
        d = width
        self.codes, self.users = matrix(LEVELS, CODES + 1, d), matrix(2, TOPICS, d)
        self.up, self.down = matrix(2 * d, 2 * d), matrix(2 * d, d)
        self.queries, self.reads, self.thinks = matrix(4, d), Attention(d), SwiGLU(d)
        self.before_reads, self.before_items, self.before_thinks = norm(d), norm(d), norm(d)
        self.places, self.said = matrix(1 + SHORT + POSITIVE + 4, d), matrix(LEVELS, d)
        self.encoder = nn.ModuleList(Block(d, SwiGLU(d), False) for _ in range(2))
        self.decoder = nn.ModuleList(
            Block(d, Experts(d, [SwiGLU(d) for _ in range(experts)], active), True)
            for _ in range(2)
        )
        self.encoded, self.decoded = norm(d), norm(d)
        self.begin, self.heads = matrix(1, d), matrix(LEVELS, d, CODES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        level, count = torch.arange(LEVELS), len(x)
        goal = x[:, -LEVELS:]
        items = self.codes[level, x[:, 2:].unflatten(1, (-1, LEVELS))].sum(2)
        old, liked, short, _ = items.split([OLD, POSITIVE, SHORT, 1], 1)
        user = self.users[torch.arange(2), x[:, :2]].flatten(1)
        user = F.leaky_relu(user @ self.up, 0.01) @ self.down
        q = self.queries.expand(count, -1, -1)
        q = q + self.reads(self.before_reads(q), self.before_items(old))
        q = q + self.thinks(self.before_thinks(q))
        h = torch.cat([user[:, None], short, liked, q], 1) + self.places
        for block in self.encoder:
            h = block(h, h)
        h = self.encoded(h)
        said = self.codes[level[:-1], goal[:, :-1]]
        y = torch.cat([self.begin.expand(count, -1, -1), said], 1) + self.said
        for block in self.decoder:
            y = block(y, h)
        logits = torch.einsum("nld,ldc->nlc", self.decoded(y), self.heads)
        return LEVELS * F.cross_entropy(logits.flatten(0, 1), goal.flatten())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a recommender on invented users.")
    parser.add_argument("--seed", type=int, default=1, help="of the world and of the model")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--json", action="store_true", help="print JSON, not a sentence")
    return parse_experts(parser, 4)


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    ids = Ids(vectors(args.seed), args.seed)
    model = Recommender(args.width, args.experts, args.active)
    balance = Balance(model, args.bias_rate)
    groups: List[Dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.99))
    warm = max(1, args.steps // 5)

    def factor(step: int) -> float:
        done = (step - warm) / max(1, args.steps - warm)
        return (step + 1) / warm if step < warm else 0.55 + 0.45 * math.cos(math.pi * done)

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    run = coded.join(
        model,
        optimizer,
        units=UNITS,
        steps=args.steps,
        unit_samples=RECORDS,
        state={"lr": scheduler, "balance": balance},
    )
    for step in run:
        for micro in step:
            keys = [[args.seed, 2 + micro.batch, sample] for sample in micro.samples]
            loss = model(rows(ids, *records(keys)))
            loss.backward()
            micro.report(loss, *balance.counts())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step.applied:
            balance.update(step.totals[1:])
        optimizer.zero_grad(set_to_none=True)
    users, seen = records([[args.seed, 1, sample] for sample in range(VALIDATION)])
    floor, marginal = entropies(ids, users, seen)
    with torch.no_grad():
        loss = float(model(rows(ids, users, seen)))
    numbers = {"floor": floor, "marginal": marginal, "validation": loss, "gap": loss - floor}
    found: Dict[str, Any] = {name: round(value, 4) for name, value in numbers.items()}
    found.update(balance.summary(), ids=ids.summary, digest=replica_hash(model, balance))
    near = f"{loss:.3f} nats an item, {loss - floor:.3f} above the floor of {floor:.3f}"
    print(json.dumps(found) if args.json else f"{near}, sha256 {found['digest']}", flush=True)


if __name__ == "__main__":
    main()
