"""What lies where, and what is summed by whom, for random meshes: one process is each rank in turn."""

from __future__ import annotations

import random
from math import prod
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from codedgrad._torch.cell.ranks import Ranks  # noqa: E402
from codedgrad._torch.cell.vector import Known, Vector, known_of  # noqa: E402
from codedgrad._torch.fsdp import Sums  # noqa: E402
from codedgrad._torch.parts import Part  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

NAMES = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def no_group_is_left() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def as_rank(rank: int, size: int) -> None:
    """This process is a rank of a group whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)


class Case:
    """A random mesh, and parameters that are cut over some of its dimensions."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.shape: Tuple[int, ...] = (1,)
        while prod(self.shape) == 1:
            self.shape = tuple(dice.choice([1, 2, 2, 3, 4]) for _ in range(dice.randint(1, 3)))
            if prod(self.shape) > 8:
                self.shape = (1,)
        self.size = prod(self.shape)
        self.names = NAMES[: len(self.shape)]
        # For each parameter its own shape, the dimensions of its mesh, and which of its own each
        # cuts, if it does.
        self.parameters: List[Tuple[List[int], List[str], List[Any]]] = []
        for _ in range(dice.randint(1, 4)):
            shape = [dice.randint(1, 7) for _ in range(dice.randint(1, 3))]
            over = sorted(dice.sample(self.names, dice.randint(0, len(self.names))))
            cuts = [dice.choice([None, *range(len(shape))]) for _ in over]
            self.parameters.append((shape, over, cuts))

    def mesh(self) -> Any:
        return init_device_mesh("cpu", self.shape, mesh_dim_names=tuple(self.names))

    def built(self, mesh: Any) -> List[Any]:
        """The parameters of the rank that this process is; every number is another one."""
        found, first = [], 0
        for shape, over, cuts in self.parameters:
            whole = torch.arange(first, first + prod(shape), dtype=torch.float32).view(shape)
            first += prod(shape)
            if over:
                how = [Replicate() if cut is None else Shard(cut) for cut in cuts]
                whole = distribute_tensor(whole, mesh[tuple(over)], how, src_data_rank=None)
            # No operator touches it: PyTorch would keep the mesh of the rank that came first.
            found.append(whole)
        return found

    @property
    def numbers(self) -> int:
        return sum(prod(shape) for shape, _, _ in self.parameters)


def parts_of(case: Case) -> Tuple[List[List[Known]], List[List[Any]]]:
    """What all ranks say of their parts, and the numbers in them."""
    said, numbers = [], []
    for rank in range(case.size):
        as_rank(rank, case.size)
        parts = [Part(each) for each in case.built(case.mesh())]
        said.append(known_of(parts))
        numbers.append([part.detach().reshape(-1).clone() for part in parts])
    return said, numbers


@pytest.mark.parametrize("seed", range(20))
def test_each_number_is_in_the_vector_once_and_comes_back_to_all(seed: int) -> None:
    case = Case(seed)
    said, numbers = parts_of(case)
    bucket = random.Random(seed).choice([1, 5, 30, 1 << 20])
    vectors = [Vector(rank, said, bucket) for rank in range(case.size)]
    order = vectors[0].order
    assert all(each.order == order for each in vectors)
    whole = torch.cat([numbers[rank][place] for rank, place in order])
    assert sorted(whole.tolist()) == list(range(case.numbers))
    assert vectors[0].end == case.numbers
    for rank, vector in enumerate(vectors):
        # What every rank reads of what was decoded is what it has.
        read = whole if rank == 0 else torch.full_like(whole, -1.0)
        for each in vector.needed:
            read[each] = whole[each]
        for part, source in zip(numbers[rank], vector.sources(read)):
            assert torch.equal(source[: len(part)], part)
        # Each writes the parts that it owns, in their order, and what the first one takes of others
        # is theirs.
        owned = [numbers[rank][place] for place in vector.places]
        written = torch.cat([torch.empty(0), *vector.own(whole)])
        assert torch.equal(written, torch.cat([torch.empty(0), *owned]))
    of_others = [whole[each.others : each.end] for each in vectors[0].buckets]
    rest = [numbers[rank][place] for rank, place in order if rank]
    assert torch.equal(torch.cat([torch.empty(0), *of_others]), torch.cat([torch.empty(0), *rest]))


@pytest.mark.parametrize("seed", range(20))
def test_a_bucket_is_written_when_each_of_its_parts_is(seed: int) -> None:
    case = Case(seed)
    said, _ = parts_of(case)
    for rank in range(case.size):
        vector = Vector(rank, said, 6)
        ends = [*(each.place for each in vector.buckets[1:]), len(said[rank])]
        assert all(
            sum(known.numel for rank_said in said for known in rank_said[bucket.place : end]) >= 6
            for bucket, end in list(zip(vector.buckets, ends))[1:]
        )
        for first in range(len(vector.places) + 1):
            missing = vector.places[:first]
            written = [all(place < bucket.place for place in missing) for bucket in vector.buckets]
            assert vector.written_from(first) == [*written, True].index(True)


def expected(case: Case, over: Sequence[str], data: Sequence[str]) -> List[str]:
    """Over which dimensions codedgrad sums: those where samples are cut, and the parameter is not."""
    sizes = dict(zip(case.names, case.shape))
    return [name for name in data if sizes[name] > 1 and name not in over]


@pytest.mark.parametrize("seed", range(20))
def test_what_the_mesh_of_a_parameter_lacks_is_summed_here(seed: int) -> None:
    case = Case(seed)
    data = random.Random(seed).sample(
        case.names, random.Random(seed + 1).randint(0, len(case.names))
    )
    as_rank(random.Random(seed).randrange(case.size), case.size)
    mesh = case.mesh()
    ranks = Ranks(mesh, data)
    sizes: Dict[str, int] = dict(zip(case.names, case.shape))
    assert ranks.parts == prod(sizes[name] for name in data)
    for number, parameter in enumerate(case.built(mesh)):
        over = case.parameters[number][1]
        module = nn.Module()
        within = [name for name in data if name in over and sizes[name] > 1]
        if within:
            # It is not known who sums over those.
            with pytest.raises(ValueError, match=f"cut over .*{within[0]}"):
                Sums([module], [("weight", parameter)], ranks, "mean")
            continue
        sums = Sums([module], [("weight", parameter)], ranks, "mean")
        assert [case.names[each] for each in sums.left[0]] == sorted(expected(case, over, data))


@pytest.mark.parametrize("reduction", ["mean", "tokens"])
@pytest.mark.parametrize("seed", range(10))
def test_fsdp2_divides_by_all_ranks_that_cut_samples(seed: int, reduction: str) -> None:
    """Also by those over which the parameter is cut beside, as experts are."""
    from torch.distributed.fsdp import fully_shard

    dice = random.Random(seed)
    shape = dice.choice([(2, 2), (2, 4), (4, 2), (2, 2, 2), (2, 3)])
    names = NAMES[: len(shape)]
    shard, others = names[0], names[1:]
    cut_by = [name for name in others if dice.random() < 0.5]
    data = [shard] + [name for name in others if dice.random() < 0.6]
    as_rank(dice.randrange(prod(shape)), prod(shape))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=tuple(names))
    sizes = dict(zip(names, shape))
    module = nn.Linear(8, 24, bias=False)
    if cut_by:
        placed = [Shard(0)] + [Replicate()] * (len(cut_by) - 1)
        over = mesh[tuple(cut_by)]
        module.weight = nn.Parameter(
            distribute_tensor(module.weight.data, over, placed, src_data_rank=None)
        )
    if len(cut_by) > 1:
        pytest.skip("FSDP2 takes parameters that one other dimension cuts")
    sharded: Any = fully_shard(module, mesh=mesh[shard])
    ranks = Ranks(mesh, data)
    sums = Sums([sharded], [("weight", sharded.weight)], ranks, reduction)
    group = sharded._get_fsdp_state()._fsdp_param_group
    summed = prod(sizes[name] for name in data if name == shard or name in cut_by)
    assert group.gradient_divide_factor == (summed if reduction == "mean" else 1)
    assert group.force_sum_reduction_for_comms
    left = [name for name in data if name not in (shard, *cut_by)]
    assert [names[each] for each in sums.left[0]] == sorted(left)
    sums.close()
    assert group.gradient_divide_factor is None


@pytest.mark.parametrize("reduction", ["mean", "tokens"])
def test_experts_are_known_by_the_name_of_their_meshs_dimension(reduction: str) -> None:
    as_rank(1, 4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))

    def weight(over: Any, *placed: Any) -> Any:
        whole = torch.ones(4, 2)
        return nn.Parameter(distribute_tensor(whole, over, placed, src_data_rank=None))

    def sums_of(parameter: Any) -> Sums:
        named = [("weight", parameter)]
        return Sums([nn.Module()], named, Ranks(mesh, ["dp", "ep"]), reduction)

    def gradient_of(parameter: Any) -> List[float]:
        parameter.grad = None
        parameter.to_local().sum().backward()
        found: List[float] = parameter.grad.to_local().unique().tolist()
        return found

    # Over `dp` nothing sums but this package, and over `ep` the backward pass has done so.
    experts = weight(mesh["ep"], Shard(0))
    sums = sums_of(experts)
    assert sums.left == [[0]]
    assert gradient_of(experts) == [0.5 if reduction == "mean" else 1.0]
    sums.close()
    assert gradient_of(experts) == [1.0]
    # Cut as under tensor parallelism, and replicated over ranks with other samples.
    for parameter in (weight(mesh["dp"], Shard(0)), weight(mesh, Replicate(), Shard(0))):
        with pytest.raises(ValueError, match="weight is cut over .*; or name a dimension"):
            sums_of(parameter)
