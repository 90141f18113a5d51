"""Reads at computed positions, against PyTorch in float64."""

from __future__ import annotations

from itertools import product

import pytest
from agreement import agree

from fuseledger.graph.sample import affine_grid, grid_sample, reverse_rows, write_rows

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.torch


def randn(*shape: int) -> torch.Tensor:
    """Normal float64 values, the same in every run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(
    ("border", "corners", "nearest"),
    list(product(("zeros", "border", "reflection"), (True, False), (True, False))),
)
def test_sampling_on_a_grid(border: str, corners: bool, nearest: bool):
    """A sample is the cells of its points, one op a coordinate, and one interpolation."""
    mode = "nearest" if nearest else "bilinear"
    graph = agree(
        lambda b, x, g: grid_sample(b, x, g, border=border, corners=corners, nearest=nearest),  # pyright: ignore[reportArgumentType]
        lambda x, g: F.grid_sample(x, g, mode, border, corners),
        randn(2, 3, 5, 7),
        randn(2, 4, 6, 2),
    )
    assert [op.function for op in graph.ops][:2] == ["sample.cell", "sample.cell"]
    # around a point lie four elements; the nearest is one of them
    assert sum(read.is_lookup for read in graph.ops[-1].reads) == (1 if nearest else 4)


@pytest.mark.parametrize("shape", [(2, 3, 1, 7), (1, 1, 5, 1)])
def test_sampling_along_a_single_element(shape: tuple[int, ...]):
    """Where a dimension holds one element, points beside it fade to zero."""
    agree(
        lambda b, x, g: grid_sample(b, x, g, border="zeros", corners=False),
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        randn(*shape),
        randn(shape[0], 4, 6, 2),
    )


def test_sampling_a_volume():
    """In three dimensions eight elements lie around a point."""
    graph = agree(
        lambda b, x, g: grid_sample(b, x, g, border="border", corners=True),
        lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=True),
        randn(2, 3, 4, 5, 6),
        randn(2, 3, 2, 2, 3),
    )
    assert sum(read.is_lookup for read in graph.ops[-1].reads) == 8


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("space", [(4, 5), (3, 1), (2, 3, 4)])
def test_affine_grid(space: tuple[int, ...], corners: bool):
    """The grid of a linear map is one pointwise op."""
    rank = len(space)
    if corners and 1 in space:
        pytest.skip("PyTorch 2.13 puts the one point of an axis at 0 only without corners")
    graph = agree(
        lambda b, theta: affine_grid(b, theta, space, corners=corners),
        lambda theta: F.affine_grid(theta, [2, 1, *space], align_corners=corners),
        randn(2, rank, rank + 1),
    )
    assert len(graph.ops) == 1


def test_reversed_rows():
    """Column j of x has its first lengths[j] elements reversed."""
    lengths = torch.tensor([1, 4, 3], dtype=torch.float64)

    def reversed_(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        for j, n in enumerate((1, 4, 3)):
            y[:n, j] = x[:n, j].flip(0)
        return y

    agree(lambda b, x, n: reverse_rows(b, x, n, 0, 1), reversed_, randn(4, 3, 2), lengths)


@pytest.mark.parametrize("circular", [True, False])
def test_rows_written_into_a_cache(circular: bool):
    """Two rows go where each batch's cache ends; a circular one goes on at the beginning."""
    starts = torch.tensor([1, 3], dtype=torch.float64)

    def written(x: torch.Tensor, new: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        for batch, start in enumerate((1, 3)):
            for i in range(2):
                if circular or start + i < 4:
                    y[batch, :, (start + i) % 4] = new[batch, :, i]
        return y

    agree(
        lambda b, x, new, at: write_rows(b, x, new, at, 2, circular=circular),
        written,
        randn(2, 3, 4, 5),
        randn(2, 3, 2, 5),
        starts,
    )
