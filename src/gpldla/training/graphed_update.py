"""A whole update of meta-training as CUDA graphs.

A GPU computes an episode of a small network in half a millisecond, and launching its operations one by one
takes ten times as long. A graph is recorded once, from the same code, and launched as a whole.
"""

import gc
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from gpldla import kernels
from gpldla.backbones.episode_blocks import EpisodeBatches
from gpldla.classifier.model import FewShotModel
from gpldla.data.part_images import PartImages
from gpldla.training.batch_norm import BatchNormSchedule

WARMUP_UPDATES = 3  # run eagerly: libraries allocate what they need in them


class GraphedUpdate:
    """Updates on a fixed number of episodes, with the memory of everything in it fixed too.

    loss:           stored pixels, augmentations, number of episodes → mean loss, and what the head consumed
    backward:       computes the gradients of a loss
    all_reduce_sum: sums the gradients of all processes
    take_step:      what an optimiser does with gradients; it must not replace them
    """

    @staticmethod
    def is_supported(model: FewShotModel, device: torch.device) -> bool:
        """Return whether updates of this model can be recorded on this device."""
        return device.type == "cuda" and model.head.capturable()

    def __init__(
        self,
        model: FewShotModel,
        optimizer: torch.optim.Optimizer,
        images: PartImages,
        batch_norm: BatchNormSchedule,
        *,
        episodes: int,
        loss: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]],
        backward: Callable[[Tensor], None],
        all_reduce_sum: Callable[[], None],
        take_step: Callable[[], None],
    ) -> None:
        self.episodes = episodes
        self._model, self._optimizer, self._images = model, optimizer, images
        self._batch_norm, self._episode_batches = batch_norm, EpisodeBatches(model.backbone)
        self._loss, self._backward = loss, backward
        self._all_reduce_sum, self._take_step = all_reduce_sum, take_step
        device = next(model.parameters()).device
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._updates, self._fetched = 0, 0
        make_stream = cast(Callable[..., torch.cuda.Stream], torch.cuda.Stream)  # which has no types
        self._stream = make_stream(device)
        self._pixels: Tensor  # [episodes · (n + q), c, h, w]
        self._augmentations: Tensor  # [episodes · (n + q), ...]
        self._represented: Tensor
        self._gradient_graph, self._step_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()

    @property
    def represented(self) -> Tensor:
        """What the head consumed of an episode of the last update, [n + q, ...]."""
        return self._represented

    def update(self, indices: Tensor, augmentations: Tensor, seed: int) -> None:
        """Take a step on episodes: image indices [E, n + q] and augmentations [E, n + q, ...]."""
        torch.cuda.manual_seed(seed)
        indices, augmentations = indices.flatten(), augmentations.flatten(0, 1)
        if self._updates < WARMUP_UPDATES:
            self._pixels, self._augmentations = self._images[indices], augmentations.clone()
            self._run_eagerly()
        else:
            self._images.copy_to(self._pixels, indices)
            self._augmentations.copy_(augmentations)
            if self._updates == WARMUP_UPDATES:
                self._capture()
            self._gradient_graph.replay()
            self._all_reduce_sum()
            self._step_graph.replay()
        self._updates += 1

    def fetch_losses(self) -> tuple[float, int]:
        """Return the sum of the losses since the last call and the number of episodes; waits for the GPU."""
        total, count = self._loss_sum.item(), (self._updates - self._fetched) * self.episodes
        self._loss_sum.zero_()
        self._fetched = self._updates
        return total, count

    def _run_eagerly(self) -> None:
        """Run what will be recorded, on a stream of its own as recording does."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._optimizer.zero_grad()
            self._compute_gradients()
            self._all_reduce_sum()
            self._take_step()
        current.wait_stream(self._stream)

    def _capture(self) -> None:
        self._optimizer.zero_grad()  # gradients become tensors of the graph
        gc.collect()  # an earlier training's graph that is freed while this one is recorded would spoil it
        with torch.cuda.graph(self._gradient_graph, stream=self._stream):
            self._compute_gradients()
        with torch.cuda.graph(self._step_graph, pool=self._gradient_graph.pool(), stream=self._stream):
            self._take_step()

    def _compute_gradients(self) -> None:
        """Compute all episodes in one batch by kernels; where that is not possible, one after the other."""
        done = None
        if self._episode_batches.possible:
            with self._episode_batches.of(self.episodes):
                done = kernels.try_or_fall_back(self._compute_batched)
        if done is not None:
            loss, represented = done
            self._represented = represented if self.episodes == 1 else represented[0]
            self._loss_sum += loss.detach() * self.episodes
            return
        self._optimizer.zero_grad()  # of a try that failed halfway
        parts = zip(self._pixels.chunk(self.episodes), self._augmentations.chunk(self.episodes))
        for index, (pixels, augmentations) in enumerate(parts):
            with self._batch_norm.episode(index, self.episodes):
                loss, self._represented = self._loss(pixels, augmentations, 1)
            self._backward(loss / self.episodes)
            self._loss_sum += loss.detach()

    def _compute_batched(self) -> tuple[Tensor, Tensor]:
        loss, represented = self._loss(self._pixels, self._augmentations, self.episodes)
        self._backward(loss)  # whose kernels are built here
        return loss, represented
