"""Sources: every row once per pass, paired with its response, in an order that depends on seed and pass only; little is held in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import liftednn as lnn
from liftednn.data.sources import Loader, Mapped, Memory, Source, source_of
from liftednn.init import lifted_

ROWS, SIZE = 203, 2  # four runs of a memory map, the last one short


def table(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Row i is (i, i + 1/2, -i), its response 1000 + i."""
    number = np.arange(rows, dtype=np.float64)
    return np.stack([number, number + 0.5, -number], 1), 1000 + number


def numbers(batches: Iterable[tuple[Any, ...]]) -> list[int]:
    """Which rows came, in order; x and y, and row weights if there are any, must belong together entry by entry."""
    found: list[int] = []
    for x, y, *_ in batches:
        row = np.asarray(x)[:, 0]
        np.testing.assert_array_equal(np.asarray(x), np.stack([row, row + 0.5, -row], 1))
        np.testing.assert_array_equal(np.asarray(y), 1000 + row)
        found += row.astype(int).tolist()
    return found


def memory(_: Path) -> Source:
    x, y = table()
    return Memory(torch.tensor(x), torch.tensor(y))


def mapped(folder: Path) -> Source:
    """Both parts in files."""
    for name, part in zip("xy", table(), strict=True):
        np.save(folder / f"{name}.npy", part)
    x, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
    source = source_of(x, y)
    assert isinstance(source, Mapped)
    return source


def loader(_: Path) -> Source:
    x, y = (torch.tensor(part) for part in table())
    return source_of(DataLoader(TensorDataset(x, y), batch_size=SIZE))


ALL = pytest.mark.parametrize("make", [memory, mapped, loader])
SHUFFLED = pytest.mark.parametrize("make", [memory, mapped])


class Recorder:
    """An array on disk, as it were: it gives slices only, and notes how many rows each one took."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.taken: list[int] = []

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, piece: slice) -> np.ndarray:
        assert isinstance(piece, slice)
        self.taken.append(len(self.data[piece]))
        return self.data[piece]


@ALL
def test_every_pass_gives_every_row_once_with_its_response(make: Callable[[Path], Source], tmp_path: Path) -> None:
    source = make(tmp_path)
    for number in range(3):
        assert sorted(numbers(source.batches(SIZE, 5, number))) == list(range(ROWS))


@ALL
def test_all_batches_but_one_have_the_requested_size(make: Callable[[Path], Source], tmp_path: Path) -> None:
    source = make(tmp_path)
    sizes = [len(x) for x, _, _ in source.batches(SIZE, 0, 1)]
    assert sorted(sizes) == [1] + [2] * 101
    if not isinstance(source, Mapped):  # a memory map's short run may come before others
        assert sizes[-1] == 1


@SHUFFLED
def test_the_order_depends_on_seed_and_pass_alone(make: Callable[[Path], Source], tmp_path: Path) -> None:
    source, again = make(tmp_path), make(tmp_path)
    orders = {(seed, number): numbers(source.batches(SIZE, seed, number)) for seed in range(4) for number in range(4)}
    assert len({tuple(order) for order in orders.values()}) == 16
    for seed, number in reversed(orders):
        assert numbers(again.batches(SIZE, seed, number)) == orders[seed, number]
    assert list(range(ROWS)) not in orders.values()


def test_the_order_in_memory_is_uniform_from_pass_to_pass() -> None:
    source = Memory(*(torch.tensor(part) for part in table(20)))
    places = torch.tensor([numbers(source.batches(7, 0, number)).index(3) for number in range(400)])
    assert places.double().mean() == pytest.approx(9.5, abs=4 * (399 / 12 / 400) ** 0.5)
    assert len(places.unique()) == 20


def test_a_memory_map_is_shuffled_in_runs_and_within_them(tmp_path: Path) -> None:
    source, run = mapped(tmp_path), 32 * SIZE
    orders = [numbers(source.batches(SIZE, 0, number)) for number in range(8)]
    runs = [list(dict.fromkeys(row // run for row in order)) for order in orders]
    assert all(sorted(order) == [0, 1, 2, 3] for order in runs)
    assert len({tuple(order) for order in runs}) > 1
    within = [[row for row in order if row < run] for order in orders]
    assert len({tuple(order) for order in within}) == 8
    assert all(sum(abs(a - b) == 1 for a, b in itertools.pairwise(order)) < run / 4 for order in within)


@SHUFFLED
def test_a_batch_of_all_rows_and_more_gives_everything_at_once(make: Callable[[Path], Source], tmp_path: Path) -> None:
    source = make(tmp_path)
    for size in (ROWS, ROWS + 1, 10 * ROWS):
        batches = list(source.batches(size, 3, 2))
        assert len(batches) == 1
        assert sorted(numbers(batches)) == list(range(ROWS))


@ALL
def test_a_sample_has_distinct_rows_with_their_responses(make: Callable[[Path], Source], tmp_path: Path) -> None:
    source = make(tmp_path)
    for count in (1, 50, 64, 128):
        found = numbers([source.sample(count, 0)])
        assert count - 1 <= len(found) <= count  # the last run of a memory map may be short
        assert len(set(found)) == len(found) >= 1
        assert found == numbers([source.sample(count, 0)])
    assert sorted(numbers([source.sample(10 * ROWS, 0)])) == list(range(ROWS))


@SHUFFLED
def test_a_sample_is_from_all_over_the_rows(make: Callable[[Path], Source], tmp_path: Path) -> None:
    source = make(tmp_path)
    samples = [numbers([source.sample(64, seed)]) for seed in range(3)]
    for found in samples:
        quarters = np.bincount(np.array(found) * 4 // ROWS, minlength=4)
        assert quarters.min() >= 6  # 16 expected
    assert len({tuple(sorted(found)) for found in samples}) == 3


def test_a_loader_s_sample_is_its_first_rows() -> None:
    source = Loader([(np.array([[0.0, 0.5, 0.0]]), np.array([1000.0])), *_pairs([1, 2, 3], [4, 5])])
    assert numbers([source.sample(3, 0)]) == [0, 1, 2]
    assert numbers([source.sample(5, 9)]) == [0, 1, 2, 3, 4]
    assert numbers([source.sample(99, 0)]) == [0, 1, 2, 3, 4, 5]


def _pairs(*batches: list[int]) -> list[tuple[Tensor, Tensor]]:
    x, y = (torch.tensor(part) for part in table())
    return [(x[batch], y[batch]) for batch in batches]


def test_a_memory_map_is_read_a_run_at_a_time() -> None:
    x, y = (Recorder(part) for part in table())
    batches = Mapped(x, y).batches(SIZE, 0, 0)
    assert (x.taken, y.taken) == ([], [])
    first = next(batches)
    assert len(x.taken) == len(y.taken) == 1  # the next run is not read before this one is used up
    assert sorted(numbers([first, *batches])) == list(range(ROWS))
    assert sorted(x.taken) == sorted(y.taken) == [11, 64, 64, 64]


def test_the_sample_of_a_memory_map_reads_no_more_rows_than_it_gives() -> None:
    x, y = (Recorder(part) for part in table(5000))
    found = numbers([Mapped(x, y).sample(640, 1)])
    assert sum(x.taken) == sum(y.taken) == len(found) == 640
    assert max(x.taken) == 10


def test_batches_of_a_memory_map_are_copies(tmp_path: Path) -> None:
    source = mapped(tmp_path)
    for x, y, _ in source.batches(SIZE, 0, 0):
        x.zero_()
        y.zero_()
    assert sorted(numbers(source.batches(SIZE, 0, 0))) == list(range(ROWS))


def test_an_iterator_gives_every_row_once_though_a_sample_was_taken() -> None:
    source = source_of(iter(_pairs([3, 1], [2], [0, 5, 4])))
    assert sorted(numbers([source.sample(3, 0)])) == [1, 2, 3]
    assert list(numbers(source.batches(SIZE, 0, 0))) == [3, 1, 2, 0, 5, 4]
    assert list(source.batches(SIZE, 0, 1)) == []


def test_an_iterable_is_taken_as_it_comes() -> None:
    batches = _pairs([3, 1], [2], [0, 5, 4])
    source = source_of(batches)
    assert isinstance(source, Loader)
    assert source.rows is None
    for number in range(2):
        given = list(source.batches(1, 7, number))
        assert numbers(given) == [3, 1, 2, 0, 5, 4]
        assert [len(x) for x, _, _ in given] == [2, 1, 3]


def test_a_shuffling_data_loader_shuffles_for_itself() -> None:
    x, y = (torch.tensor(part) for part in table())
    generator = torch.Generator().manual_seed(0)
    source = source_of(DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True, generator=generator))
    one, two = (numbers(source.batches(3, 0, 0)) for _ in range(2))
    assert sorted(one) == sorted(two) == list(range(ROWS))
    assert one != two


def test_each_kind_of_data_has_its_source(tmp_path: Path) -> None:
    x, y = table()
    for given in ((x, y), (torch.tensor(x), torch.tensor(y)), (x.tolist(), y.tolist())):
        source = source_of(*given)
        assert isinstance(source, Memory)
        assert source.rows == ROWS
        assert sorted(numbers(source.batches(SIZE, 0, 0))) == list(range(ROWS))
    assert mapped(tmp_path).rows == ROWS


def test_tensors_that_carry_gradients_are_cut_from_their_graph() -> None:
    x, y = (torch.tensor(part, requires_grad=True) for part in table())
    assert not any(part.requires_grad for batch in source_of(x, y).batches(SIZE, 0, 0) for part in batch[:2])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((torch.zeros(4, 2), torch.zeros(3)), "x has 4 rows and y has 3: they must agree"),
        ((np.zeros((2, 2)), [1, 2, 3]), "x has 2 rows and y has 3: they must agree"),
        (
            (torch.zeros(4, 2),),
            r"without y, x must be an iterable of \(x, y\) batches, got Tensor",
        ),
        ((np.zeros((4, 2)),), r"must be an iterable of \(x, y\) batches, got ndarray"),
        ((7,), r"must be an iterable of \(x, y\) batches, got int"),
    ],
)
def test_what_cannot_be_a_source_is_refused(given: tuple, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        source_of(*given)


def test_lengths_of_a_memory_map_must_agree_too(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    with pytest.raises(ValueError, match="x has 4 rows and y has 5"):
        source_of(np.load(tmp_path / "x.npy", mmap_mode="r"), np.zeros(5))


def test_a_loader_without_batches_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the iterable gave no batches: it must yield pairs \(x, y\)"):
        source_of([]).sample(10, 0)


@pytest.mark.parametrize("kind", ["memory", "mapped", "loader"])
def test_every_row_comes_with_its_own_weight(kind: str, tmp_path: Path) -> None:
    x, y = table()
    counts = np.where(np.arange(ROWS) % 5 == 0, 3.0, 1.0)
    if kind == "mapped":
        np.save(tmp_path / "x.npy", x)
        source = source_of(np.load(tmp_path / "x.npy", mmap_mode="r"), y, counts)
    elif kind == "memory":
        source = source_of(x, y, counts)
    else:
        source = source_of(DataLoader(TensorDataset(*(torch.tensor(part) for part in (x, y, counts))), batch_size=SIZE))
    scale = 1.0 if kind == "loader" else counts.mean()
    for batches in (list(source.batches(SIZE, 0, 1)), [source.sample(70, 0)]):
        for rows, _, given in batches:
            np.testing.assert_allclose(np.asarray(given), counts[np.asarray(rows)[:, 0].astype(int)] / scale)
        assert len(numbers(batches)) == sum(len(given) for _, _, given in batches)


def test_rows_of_weight_0_are_never_read() -> None:
    x, y = table()
    source = source_of(x, y, np.arange(ROWS) % 2)
    assert sorted(numbers(source.batches(SIZE, 0, 0))) == list(range(1, ROWS, 2))
    assert source.rows == ROWS // 2


class Stream(IterableDataset):
    """Rows and responses, one at a time, of an unknown number."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = (torch.tensor(part, dtype=torch.float32) / ROWS for part in table())
        return iter(zip(x, y, strict=True))


class Unsized:
    """Batches that start anew each time, and have no length by class."""

    dataset: Any = None

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def test_the_length_of_a_stream_is_unknown() -> None:
    source = source_of(DataLoader(Stream(), batch_size=20))
    assert (source.rows, source.steps(20)) == (None, None)
    uncounted = Unsized([])
    uncounted.dataset = DataLoader(Stream())
    assert source_of(uncounted).rows is None
    known = source_of(DataLoader(TensorDataset(torch.zeros(50, 1), torch.zeros(50)), batch_size=20))
    assert (known.rows, known.steps(1)) == (50, 3)


def test_the_rows_of_a_loader_are_those_that_its_sampler_draws() -> None:
    data = TensorDataset(torch.zeros(50, 1), torch.zeros(50))
    some, drawn = SubsetRandomSampler(range(30)), WeightedRandomSampler([1.0] * 50, 80)
    assert source_of(DataLoader(data, 20, sampler=some)).rows == 30
    assert source_of(DataLoader(data, 20, sampler=some, drop_last=True)).rows == 20
    assert source_of(DataLoader(data, 20, sampler=drawn)).rows == 80
    assert source_of(DataLoader(data, batch_sampler=BatchSampler(some, 7, drop_last=False))).rows == 30


@pytest.mark.slow
def test_lifted_takes_as_many_passes_over_drawn_rows_as_over_a_data_set_of_them(capsys: Any) -> None:
    data = TensorDataset(torch.zeros(2000, 1), torch.zeros(2000))
    drawn, alone = DataLoader(data, 15, sampler=SubsetRandomSampler(range(30))), DataLoader(Subset(data, range(30)), 15)
    module, passes = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1)), []
    for loader in (drawn, alone, DataLoader(data, 500)):
        lifted_(module, loader, loss="squared", report=True)
        passes.append(int(capsys.readouterr().out.split("passes over the data: ")[1].split()[0]))
    assert passes[0] == passes[1] > passes[2]


def test_a_run_on_a_stream_is_one_on_its_batches() -> None:
    network, stream = lnn.LiftedNetwork.mlp([3, 4, 1], loss="squared"), DataLoader(Stream(), batch_size=20)
    fit = lnn.MiniBatch(passes=2).run(network, stream)
    assert [record.steps for record in fit.history] == [11, 11]
    assert fit.status == "finished"
    anew = lnn.MiniBatch(passes=2).run(network, Unsized(list(stream)))
    for a, b in zip(fit.weights, anew.weights, strict=True):
        assert torch.equal(a.w, b.w)
        assert torch.equal(a.b, b.b)


@pytest.mark.parametrize("read", [1, 40])
def test_how_many_rows_are_read_at_once_changes_no_batch(read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = table()
    source = source_of(x, y, 1 + y)
    usual = list(source.batches(7, 0, 0))
    monkeypatch.setattr("liftednn.data.sources._READ", read)
    for batch, same in zip(usual, source.batches(7, 0, 0), strict=True):
        for part, other in zip(batch, same, strict=True):
            torch.testing.assert_close(part, other, rtol=0, atol=0)
