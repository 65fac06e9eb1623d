"""FewShotModel: backbone, head and preprocessing as one module to train, save, load and adapt."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gpldla.backbones import Backbone, create_backbone
from gpldla.backbones.foreign import OF_A_MODULE
from gpldla.classifier.feature_cache import FeatureCache
from gpldla.classifier.features import (
    embed,
    features_of_pixels,
    prepared_batches,
    read_pictures,
    require_finite_features,
)
from gpldla.classifier.model_files import read_model_files, write_model_files
from gpldla.classifier.own_prior import own_prior_head
from gpldla.classifier.sharing import Shared, shared_folder
from gpldla.classifier.shipped import CARD, CONFIG, WEIGHTS, model_folder
from gpldla.classifier.task_temperature import TaskAnswer, TaskTemperature
from gpldla.data.preprocessing import ImageSettings, Preprocessing
from gpldla.heads import Head, Posterior, create_head, head_class
from gpldla.utils.errors import UserError, require_positive
from gpldla.utils.files import write_atomically
from gpldla.utils.modules import evaluating
from gpldla.utils.progress import SILENT, Reporter
from gpldla.utils.registry import UnknownNameError

if TYPE_CHECKING:
    from gpldla.classifier.class_names import ClassNames
    from gpldla.classifier.few_shot import FewShotClassifier

FORMAT = 1


class FewShotModel(Shared, nn.Module):
    """A network that adapts to new classes from a few examples.

    backbone: a name, see `create_backbone`, or the network itself, such as `ForeignNetwork(module, ...)`
    temperature: fitted on validation classes, for the number of shots of training
    calibration: what the temperature of a task is computed from, which `FewShotClassifier.predict_proba`
        applies; None: `temperature` is applied
    info: facts that are saved with the model (recipe, validation accuracy, ...)
    preprocessing: fields of `ImageSettings`, such as zoom and mirrored, that replace those of the backbone
        where they are not the default
    """

    def __init__(
        self,
        backbone: str | Backbone,
        head: str = "gpldla",
        *,
        head_options: dict[str, Any] | None = None,
        temperature: float = 1.0,
        calibration: TaskTemperature | None = None,
        info: dict[str, Any] | None = None,
        **preprocessing: Any,
    ) -> None:
        super().__init__()
        network = create_backbone(backbone) if isinstance(backbone, str) else backbone
        given = backbone if isinstance(backbone, str) else f"{OF_A_MODULE}:{type(backbone).__name__}"
        self.backbone_name = network.name or given
        self.head_name, self.head_options = head, dict(head_options or {})
        # Channels last is the fastest memory format for convolutions, on CPUs and on GPUs.
        self.backbone: Backbone = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if settings := ImageSettings(**preprocessing).unusual_settings():
            self.set_image_settings(**settings)
        self.head: Head = self._make_head(self.head_options)
        require_positive(temperature=temperature)
        self.temperature, self.calibration = temperature, calibration
        self.info = dict(info or {})
        self.has_own_network = not self.backbone.pretrained  # its weights are then saved, not only its name
        self.eval()  # training sets training mode itself

    def __repr__(self) -> str:
        return f"<FewShotModel: backbone {self.backbone_name}, head {self.head_name}, {self.device}>"

    def set_image_settings(self, **settings: Any) -> None:
        """Change how pictures are prepared: fields of `ImageSettings`."""
        if self.backbone.reads != "pictures":
            names = " and ".join(settings)
            raise UserError(f"{self.backbone_name} reads {self.backbone.reads}: leave out {names}.")
        consumes = head_class(self.head_name).consumes
        if settings.get("mirrored") and consumes != "features":
            raise UserError(
                f"Head {self.head_name!r} consumes {consumes}, of which there is no mirrored mean;"
                " set mirrored to false."
            )
        self.backbone.preprocessing = self.backbone.preprocessing.with_settings(settings)

    @property
    def preprocessing(self) -> Preprocessing:
        """How images are prepared for the backbone."""
        return self.backbone.preprocessing

    @property
    def device(self) -> torch.device:
        """The device of the model; the CPU if it has no parameters."""
        return next(self.parameters(), torch.empty(0)).device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the network."""
        return next(self.backbone.parameters(), torch.empty(0)).dtype

    def set_head_options(self, options: dict[str, Any]) -> None:
        """Change options of the head, such as the predictive; None leaves an option unchanged.

        Learned parameters are kept, so options that set their initial values cannot be changed.
        """
        changed = {name: value for name, value in options.items() if value is not None}
        if changed:
            all_options = {**self.head_options, **changed}
            head = self._fresh_head(all_options)
            before, after = self._fresh_head(self.head_options).state_dict(), head.state_dict()
            if before.keys() != after.keys() or any(not torch.equal(before[k], after[k]) for k in before):
                raise UserError(
                    f"{', '.join(changed)} of head {self.head_name!r} changes its learned parameters;"
                    " train a model with this option."
                )
            if self.dtype == torch.float64:
                head.double()
            head.load_state_dict(self.head.state_dict())
            self.head_options, self.head = all_options, head.to(self.device).train(self.training)

    def _fresh_head(self, options: dict[str, Any]) -> Head:
        """Return an untrained head, the same in every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self._make_head(options)

    def _make_head(self, options: dict[str, Any]) -> Head:
        backbone = self.backbone
        consumes_maps = head_class(self.head_name).consumes == "maps"
        return create_head(
            self.head_name, backbone.map_shape if consumes_maps else backbone.feature_dim, **options
        )

    def represent(self, images: Tensor) -> Tensor:
        """Turn prepared images [n, c, h, w] into what the head consumes, float32 [n, ...].

        A float64 model computes and returns float64.
        """
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        images = images.to(dtype).contiguous(memory_format=torch.channels_last)
        if self.head.consumes == "features":
            return (self.backbone if self.training else self.backbone.features)(images).to(dtype)
        if self.head.consumes == "maps":
            return self.backbone.maps(images).to(dtype)
        return images

    def posterior(self, support: Tensor, labels: Tensor, n_way: int) -> Posterior:
        """Adapt to support examples [..., n, ...], as `represent` returns them, with labels [..., n]."""
        return self.head.adapt(support, labels, n_way, backbone=self.adaptable_backbone())

    @torch.no_grad()
    def task_answer(self, support: Tensor, labels: Tensor, n_way: int) -> TaskAnswer:
        """Return how classifiers of tasks with support [E, n, ...] and the same labels [n] answer."""
        if self.calibration is None:
            stored = torch.full((len(support),), self.temperature, dtype=torch.float64)
            return TaskAnswer(stored, torch.zeros_like(stored))
        own = None if self.calibration.own_error is None else own_prior_head()
        head, backbone = evaluating(self.head), self.adaptable_backbone()
        return self.calibration.of(head, support, labels, n_way, own=own, backbone=backbone)

    def forward(
        self,
        images: Tensor,
        labels: Tensor,
        query_labels: Tensor,
        n_way: int,
        episodes: int = 1,
        folds: Tensor | None = None,
        loss: Callable[..., Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the training loss of an episode, or the mean of several, and what the head consumed.

        images: prepared, support first, then query [n + q, c, h, w], episodes concatenated; all are one batch
        for BatchNorm. labels [n], query_labels [q].
        folds: indices [folds, n + q] into an episode's images, see `fold_indices`; the loss is their mean
        loss: called in place of `head.loss`, such as its compiled version
        """
        represented = self.represent(images).unflatten(0, (episodes, -1))  # [episodes, n + q, ...]
        consumed = represented if folds is None else represented[:, folds].flatten(0, 1)
        if len(consumed) == 1:
            consumed = consumed[0]
        else:
            labels, query_labels = (y.expand(len(consumed), -1) for y in (labels, query_labels))
        counts = [labels.shape[-1], query_labels.shape[-1]]
        # No reduced precision in the head: its matrices are small and its accuracy matters.
        with torch.autocast(images.device.type, enabled=False):
            support, query = consumed.split(counts, dim=labels.dim() - 1)
            loss_function = self.head.loss if loss is None else loss
            mean_loss = loss_function(
                support, labels, query, query_labels, n_way, backbone=self.adaptable_backbone()
            )
        return mean_loss, (represented[0] if episodes == 1 else represented).detach()

    def adaptable_backbone(self) -> Backbone | None:
        """Return the network if the head adapts it, else None."""
        return self.backbone if self.head.consumes == "backbone" else None

    @torch.no_grad()
    def embed(
        self,
        items: Sequence[Any],
        *,
        batch_size: int = 64,
        cache: FeatureCache | None = None,
        reporter: Reporter = SILENT,
    ) -> Tensor:
        """Turn pictures (or texts, if the backbone reads texts) into what the head consumes, [n, ...]."""
        if self.head.consumes == "features":
            return embed(self.backbone, items, batch_size=batch_size, cache=cache, reporter=reporter)
        with reporter.bar("images", len(items)) as advance:
            batches = read_pictures(items, batch_size, self.preprocessing, self.device)
            return self._represent_all(batches, advance)

    @torch.no_grad()
    def embed_pixels(self, pixels: Iterable[np.ndarray], count: int, *, batch_size: int = 64) -> Tensor:
        """As `embed`, for at most `count` pictures that are decoded as uint8 [resized, resized, channels]."""
        if self.head.consumes == "features":
            parts = [*features_of_pixels(self.backbone, pixels, count, batch_size=batch_size)]
            joined = np.concatenate(parts) if parts else np.empty((0, self.backbone.feature_dim), np.float32)
            rows = torch.from_numpy(joined)
            require_finite_features(rows, self.backbone)
            return rows.to(self.device)
        return self._represent_all(prepared_batches(pixels, batch_size, self.preprocessing, self.device))

    def _represent_all(
        self, batches: Iterable[Tensor], advance: Callable[[int], None] = lambda done: None
    ) -> Tensor:
        parts, model = [], evaluating(self)
        for images in batches:
            parts.append(model.represent(images))
            require_finite_features(parts[-1], self.backbone)
            advance(len(images))
        return torch.cat(parts) if parts else torch.empty(0, self.backbone.feature_dim, device=self.device)

    def adapt(
        self,
        items: Sequence[Any],
        labels: Sequence[Any],
        *,
        unlabelled: Sequence[Any] | None = None,
        class_names: "ClassNames | None" = None,
        cache: FeatureCache | None = None,
        reporter: Reporter = SILENT,
    ) -> "FewShotClassifier":
        """Make a classifier from a few labelled pictures (or texts); labels may be of any hashable type.

        unlabelled: more pictures (or texts), most of them of the same classes, such as those that will be
            classified; the head "gpldla-auto" learns from them, too
        class_names: what `ClassNames.embed` returns: names as a prior, also of classes without any example
        """
        from gpldla.classifier.few_shot import FewShotClassifier

        return FewShotClassifier.adapt(
            self,
            items,
            labels,
            unlabelled=unlabelled,
            class_names=class_names,
            cache=cache,
            reporter=reporter,
        )

    def config(self) -> dict[str, Any]:
        """Return everything but the weights, as JSON."""
        calibration = {} if self.calibration is None else {"calibration": self.calibration.as_json()}
        return {
            "format": FORMAT,
            "backbone": self.backbone_name,
            "head": self.head_name,
            "head_options": {name: _plain(value) for name, value in self.head_options.items()},
            "preprocessing": self.preprocessing.as_json(),
            "temperature": self.temperature,
            **calibration,
            "info": self.info,
        }

    def save(self, folder: str | Path) -> None:
        """Write model.safetensors and config.json."""
        write_model_files(Path(folder), self.state_dict(), self.config())

    def save_pretrained(
        self, folder: str | Path, *, name: str = "USER/NAME", license: str | None = None
    ) -> None:
        """Write what `save` writes, and a model card; `push_to_hub` uploads it."""
        from gpldla.classifier.card import model_card

        self.save(folder)
        write_atomically(Path(folder) / CARD, model_card(self, name, license).encode())

    @classmethod
    def from_pretrained(
        cls, name_or_folder: str | Path, *, revision: str | None = None, token: str | None = None
    ) -> "FewShotModel":
        """Load a folder written by `save`, a shipped model by its name, or USER/NAME of the Hugging Face Hub.

        The latter is downloaded if it is not in the hub's cache. The model is ready for evaluation.
        """
        found = shared_folder(name_or_folder, revision, token)
        folder = found if found.is_dir() else model_folder(name_or_folder)
        weights, config = read_model_files(folder)
        model = cls.from_config(config, str(folder / CONFIG))
        try:
            model.load_weights(weights)
        except RuntimeError:
            raise UserError(
                f"{folder / WEIGHTS} does not fit {model.backbone_name} with {model.head_name}."
            ) from None
        return model.eval()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights that `save` has written; if those of the backbone are float64, so is the model.

        Weights of a pretrained network may be missing: the model then keeps those of the installed package.
        """
        network = {name: tensor for name, tensor in weights.items() if name.startswith("backbone.")}
        if any(tensor.dtype == torch.float64 for tensor in network.values()):
            self.double()
        self.has_own_network = bool(network) or not self.backbone.pretrained
        if not self.has_own_network:
            network = {n: tensor for n, tensor in self.state_dict().items() if n.startswith("backbone.")}
        self.load_state_dict({**network, **weights})

    @classmethod
    def from_config(
        cls, config: Any, source: str, *, backbone: str | Backbone | None = None
    ) -> "FewShotModel":
        """Make a model with new weights from a configuration; `source` names its file in messages.

        backbone: to be used instead of the one that the configuration names
        """
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise UserError(f"{source} is not a model configuration of format {FORMAT}.")
        try:
            facts, calibration = config["preprocessing"], config.get("calibration")
            model = cls(
                config["backbone"] if backbone is None else backbone,
                config["head"],
                head_options=config["head_options"],
                temperature=float(config["temperature"]),
                calibration=None if calibration is None else TaskTemperature.from_json(calibration),
                info=config["info"],
                **ImageSettings.settings_in(facts),
            )
        except UnknownNameError as error:
            raise UserError(
                f"{source}: {error} If another package has this {error.kind}, install that package or name"
                " its module with --import."
            ) from None
        except UserError as error:
            raise UserError(f"{source}: {error}") from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{source} is an incomplete model configuration ({error!r}).") from None
        if facts != model.config()["preprocessing"]:
            raise UserError(
                f"{source} was made with other preprocessing of {model.backbone_name} than is installed;"
                " install the version it was made with."
            )
        return model


def _plain(value: Any) -> Any:
    """Return values of NumPy and torch as plain numbers and lists, for JSON."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray, Tensor)) else value
