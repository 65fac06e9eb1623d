"""The images of a part by index, as tensors on a device."""

import numpy as np
import torch
from torch import Tensor

from gpldla.data.protocols import Part

SHARE_OF_MEMORY = 0.25  # of a GPU's free memory, at most, for the resident images of a part
COPY_CHUNK_BYTES = 1 << 28  # bytes


class PartImages:
    """Reads images by their indices in the part.

    A GPU with enough memory gets a copy of all images once; otherwise each request reads the store.

    keep: False always reads the store, for images that are needed once
    """

    def __init__(self, part: Part, device: torch.device | str, *, keep: bool = True) -> None:
        self._part, self._device = part, torch.device(device)
        shapes = part.image_set.shapes
        self._shapes = (
            None if shapes is None else torch.from_numpy(shapes[part.indices]).float().to(self._device)
        )
        self._resident = self._copied() if keep and self._fits() else None

    def __getitem__(self, indices: Tensor) -> Tensor:
        """Return the images with these indices, int64 [n] → uint8 [n, c, h, w]."""
        if self._resident is not None:
            return self._resident[indices.to(self._device)]
        return torch.from_numpy(self._part.read(indices.cpu().numpy())).to(self._device)

    def copy_to(self, pixels: Tensor, indices: Tensor) -> None:
        """Copy the images with these indices, int64 [n], into `pixels` [n, c, h, w]."""
        if self._resident is not None:
            torch.index_select(self._resident, 0, indices, out=pixels)
        else:
            pixels.copy_(self[indices])

    def original_shapes(self, indices: Tensor) -> Tensor | None:
        """Return the shapes [n, 2] that images had before they were made square, or None if unknown."""
        return None if self._shapes is None else self._shapes[indices.to(self._device)]

    @property
    def stored_shape(self) -> tuple[int, int]:
        """Height and width of the images."""
        height, width = self._part.image_set.images.shape[2:]
        return height, width

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._part.indices)

    def _bytes_per_image(self) -> int:
        return int(np.prod(self._part.image_set.images.shape[1:]))

    def _fits(self) -> bool:
        if self._device.type != "cuda":
            return False  # the store is in the page cache of the system, which is memory already
        free, _ = torch.cuda.mem_get_info(self._device)
        return len(self) * self._bytes_per_image() <= SHARE_OF_MEMORY * free

    def _copied(self) -> Tensor:
        shape = (len(self), *self._part.image_set.images.shape[1:])
        resident = torch.empty(shape, dtype=torch.uint8, device=self._device)
        step = max(1, COPY_CHUNK_BYTES // self._bytes_per_image())
        for first in range(0, len(self), step):
            resident[first : first + step] = torch.from_numpy(self._part.read(slice(first, first + step)))
        return resident
