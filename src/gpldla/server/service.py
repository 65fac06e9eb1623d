"""Everything that the routes share: the store, the networks, the pools of threads and their bounds."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.data.thumbnails import thumbnail_of
from gpldla.server.answers import Explainer
from gpldla.server.batching import Batcher
from gpldla.server.classifiers import Classifiers
from gpldla.server.metrics import BATCHES, WAITING
from gpldla.server.networks import Network, load_file, load_networks
from gpldla.server.settings import Settings
from gpldla.server.storage import Store, open_database
from gpldla.server.threads import Threads

Result = TypeVar("Result")


class Service:
    """What one process serves.

    file: the classifier that is served read-only; then there is no store
    files, graphs: write and read classifiers' files, and ONNX files, which take seconds: one at a time, as
        each takes the memory of another network, and nobody else waits for them
    """

    def __init__(self, settings: Settings) -> None:
        limits = settings.limits
        self.settings, self.limits = settings, limits
        self.file: FewShotClassifier | None = None
        self.explainer: Explainer | None = None
        self._store: Store | None = None
        if settings.file is not None:
            self.file, network = load_file(settings.file, settings.device)
            self.networks = {network.kind: network}
            self.explainer = Explainer(self.file)
        else:
            self._store = Store(open_database(settings.database), limits)
            self.networks = load_networks(settings)
            self.classifiers = Classifiers(self._store, self.networks)
        self.batchers = {kind: self._batcher(network) for kind, network in self.networks.items()}
        self._work = Threads("work", 4, most_calls=256, seconds_per_call=0.02)
        self.files = Threads("files", 1, most_calls=32, seconds_per_call=0.3)
        self.graphs = Threads("graphs", 1, most_calls=4, seconds_per_call=10.0)

    @property
    def store(self) -> Store:
        """The store of tasks."""
        assert self._store is not None, "routes of tasks are not served with a file"
        return self._store

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function that adapts, answers or uses the database, in a thread; 429 if too many wait."""
        return await self._work.run(function, *arguments)

    async def features(self, kind: str, items: Sequence[Any]) -> np.ndarray:
        """Return the features of items [n, ...]."""
        rows = self.batchers[kind].submit(items)
        try:
            return np.stack(await asyncio.gather(*map(asyncio.wrap_future, rows)))
        finally:
            for row in rows:  # where one item failed, the others are not needed
                row.cancel()

    def thumbnails(self, pictures: Sequence[bytes]) -> list[bytes | None]:
        """Return small pictures, or None for each if none are kept."""
        return [thumbnail_of(picture) if self.settings.thumbnails else None for picture in pictures]

    def close(self) -> None:
        """Finish what is under way."""
        for batcher in self.batchers.values():
            batcher.close()
        for threads in (self._work, self.files, self.graphs):
            threads.close()
        if self._store is not None:
            self._store.close()

    def _batcher(self, network: Network) -> Batcher:
        return Batcher(
            network.embed,
            most_waiting=self.limits.waiting,
            name=f"embed {network.kind}",
            observe=BATCHES.labels(network.kind).observe,
            show_waiting=WAITING.labels(network.kind).set,
        )
