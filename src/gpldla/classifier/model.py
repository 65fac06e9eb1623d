"""FewShotModel: backbone, head and preprocessing as one thing to train, save, load and adapt."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpldla.backbones import Backbone, create_backbone
from gpldla.classifier.calibration import apply_temperature
from gpldla.classifier.features import FeatureCache, embed, evaluation_mode, list_items, read_pictures
from gpldla.classifier.novelty import Novelty, fit_novelty
from gpldla.classifier.shipped import CONFIG, WEIGHTS, model_folder
from gpldla.classifier.uncertainty import Uncertainty, uncertainty_of
from gpldla.data.preprocessing import ImageSettings, Preprocessing
from gpldla.heads import Head, Posterior, create_head, head_class
from gpldla.heads.base import to_device
from gpldla.heads.gp.linear_gp import LinearGPPosterior
from gpldla.heads.gpldla_auto import GPLDLAAuto, TaskPosterior
from gpldla.utils.errors import UserError, require_positive
from gpldla.utils.files import read_json, read_tensors, write_json, write_tensors
from gpldla.utils.progress import SILENT, Reporter
from gpldla.utils.registry import UnknownNameError

FORMAT = 1


class FewShotModel(nn.Module):
    """A network that adapts to new classes from a few examples.

    temperature: fitted on validation classes; `FewShotClassifier.predict_proba` applies it
    info: free facts that travel with the model (recipe, validation accuracy, ...)
    preprocessing: fields of `ImageSettings`, such as zoom and mirrored, that replace the backbone's own where
        they are not the default
    """

    def __init__(
        self,
        backbone: str,
        head: str = "gpldla",
        *,
        head_options: dict[str, Any] | None = None,
        temperature: float = 1.0,
        info: dict[str, Any] | None = None,
        **preprocessing: Any,
    ) -> None:
        super().__init__()
        self.backbone_name, self.head_name, self.head_options = backbone, head, dict(head_options or {})
        # Channels last: what convolutions are fastest with, on CPUs as on GPUs.
        self.backbone: Backbone = create_backbone(backbone).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if settings := ImageSettings(**preprocessing).unusual_settings():
            self._set_preprocessing(settings)
        self.head: Head = self._make_head(self.head_options)
        require_positive(temperature=temperature)
        self.temperature = temperature
        self.info = dict(info or {})

    def _set_preprocessing(self, settings: dict[str, Any]) -> None:
        if self.backbone.reads != "pictures":
            names = " and ".join(settings)
            raise UserError(f"{self.backbone_name} reads {self.backbone.reads}: leave out {names}.")
        consumes = head_class(self.head_name).consumes
        if settings.get("mirrored") and consumes != "features":
            raise UserError(
                f"Head {self.head_name!r} consumes {consumes}, of which there is no mirrored mean;"
                " set mirrored to false."
            )
        self.backbone.preprocessing = replace(self.backbone.preprocessing, **settings)

    @property
    def preprocessing(self) -> Preprocessing:
        """What images are turned to before the backbone sees them."""
        return self.backbone.preprocessing

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.parameters(), torch.empty(0)).device  # on the CPU if it has nothing to learn

    @property
    def dtype(self) -> torch.dtype:
        """The kind of number that the network computes with."""
        return next(self.backbone.parameters(), torch.empty(0)).dtype

    def set_head_options(self, options: dict[str, Any]) -> None:
        """Change options of the head, such as the predictive; those that are None stay.

        The learned parameters stay as they are, and where they start cannot be changed any more.
        """
        changed = {name: value for name, value in options.items() if value is not None}
        if changed:
            all_options = {**self.head_options, **changed}
            head = self._fresh_head(all_options)
            before, after = self._fresh_head(self.head_options).state_dict(), head.state_dict()
            if before.keys() != after.keys() or any(not torch.equal(before[k], after[k]) for k in before):
                raise UserError(
                    f"{', '.join(changed)} of head {self.head_name!r} changes what it has learned;"
                    " train a model with it."
                )
            if self.dtype == torch.float64:
                head.double()
            head.load_state_dict(self.head.state_dict())
            self.head_options, self.head = all_options, head.to(self.device).train(self.training)

    def _fresh_head(self, options: dict[str, Any]) -> Head:
        """Return a head that has not learned yet, the same in every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self._make_head(options)

    def _make_head(self, options: dict[str, Any]) -> Head:
        backbone = self.backbone
        sees_maps = head_class(self.head_name).consumes == "maps"
        return create_head(
            self.head_name, backbone.map_shape if sees_maps else backbone.feature_dim, **options
        )

    def represent(self, images: Tensor) -> Tensor:
        """Turn prepared images [n, c, h, w] to what the head consumes, float32 [n, ...].

        A model in float64 computes and answers in that.
        """
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        images = images.to(dtype).contiguous(memory_format=torch.channels_last)
        if self.head.consumes == "features":
            return (self.backbone if self.training else self.backbone.features)(images).to(dtype)
        if self.head.consumes == "maps":
            return self.backbone.maps(images).to(dtype)
        return images

    def posterior(self, support: Tensor, labels: Tensor, n_way: int) -> Posterior:
        """Adapt to represented support examples [..., n, ...] with labels [..., n]."""
        return self.head.adapt(support, labels, n_way, backbone=self._adaptable_backbone())

    def forward(
        self,
        images: Tensor,
        labels: Tensor,
        query_labels: Tensor,
        n_way: int,
        episodes: int = 1,
        turns: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the training loss of an episode, or the mean of several, and what the head consumed.

        images: prepared, support first, then query [n + q, c, h, w], and one episode after the other.
        BatchNorm sees them together. labels [n], query_labels [q].
        turns: places [t, n + q] of an episode's images, see `fold_indices`; the loss is their mean
        """
        represented = self.represent(images).unflatten(0, (episodes, -1))  # [episodes, n + q, ...]
        consumed = represented if turns is None else represented[:, turns].flatten(0, 1)
        if len(consumed) == 1:
            consumed = consumed[0]
        else:
            labels, query_labels = (y.expand(len(consumed), -1) for y in (labels, query_labels))
        counts = [labels.shape[-1], query_labels.shape[-1]]
        # The head's matrices are tiny and its accuracy matters: no reduced precision there.
        with torch.autocast(images.device.type, enabled=False):
            support, query = consumed.split(counts, dim=labels.dim() - 1)
            loss = self.head.loss(
                support, labels, query, query_labels, n_way, backbone=self._adaptable_backbone()
            )
        return loss, (represented[0] if episodes == 1 else represented).detach()

    def _adaptable_backbone(self) -> Backbone | None:
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
        """Turn pictures (or texts, where the backbone reads those) to what the head consumes, [n, ...]."""
        if self.head.consumes == "features":
            return embed(self.backbone, items, batch_size=batch_size, cache=cache, reporter=reporter)
        parts = []
        with reporter.bar("images", len(items)) as advance, evaluation_mode(self):
            for images in read_pictures(items, batch_size, self.preprocessing, self.device):
                parts.append(self.represent(images))
                advance(len(images))
        return torch.cat(parts)

    def adapt(
        self,
        items: Sequence[Any],
        labels: Sequence[Any],
        *,
        cache: FeatureCache | None = None,
        reporter: Reporter = SILENT,
    ) -> "FewShotClassifier":
        """Make a classifier from a few labelled pictures (or texts); labels may be of any type."""
        features = self.embed(_non_empty(items, self.backbone), cache=cache, reporter=reporter)
        return FewShotClassifier(self, features, labels)

    def config(self) -> dict[str, Any]:
        """Return everything but the weights, as JSON."""
        return {
            "format": FORMAT,
            "backbone": self.backbone_name,
            "head": self.head_name,
            "head_options": {name: _plain(value) for name, value in self.head_options.items()},
            "preprocessing": self.preprocessing.as_json(),
            "temperature": self.temperature,
            "info": self.info,
        }

    def save(self, folder: str | Path) -> None:
        """Write model.safetensors and config.json."""
        folder = Path(folder)
        write_tensors(folder / WEIGHTS, self.state_dict())
        write_json(folder / CONFIG, self.config())

    @classmethod
    def from_pretrained(cls, name_or_folder: str | Path) -> "FewShotModel":
        """Load a folder written by `save`, or a shipped model by its name, ready for evaluation."""
        folder = model_folder(name_or_folder)
        if not (folder / CONFIG).is_file():
            raise UserError(f"{folder} is not a model: it has no {CONFIG}; train one with `gpldla train`.")
        config = read_json(folder / CONFIG)
        model = cls.from_config(config, str(folder / CONFIG))
        weights, _ = read_tensors(folder / WEIGHTS)
        try:
            model.load_weights(weights)
        except RuntimeError:
            raise UserError(
                f"{folder / WEIGHTS} does not fit {model.backbone_name} with {model.head_name}."
            ) from None
        return model.eval()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load what `save` has written; a model that was trained in float64 becomes one of float64."""
        if any(t.dtype == torch.float64 for name, t in weights.items() if name.startswith("backbone.")):
            self.double()
        self.load_state_dict(weights)

    @classmethod
    def from_config(cls, config: Any, where: str) -> "FewShotModel":
        """Make a model with fresh weights as `config` says; `where` that stands, for messages."""
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise UserError(f"{where} is not a model configuration of format {FORMAT}.")
        try:
            facts = config["preprocessing"]
            model = cls(
                config["backbone"],
                config["head"],
                head_options=config["head_options"],
                temperature=float(config["temperature"]),
                info=config["info"],
                **ImageSettings.settings_in(facts),
            )
        except UnknownNameError as error:
            raise UserError(
                f"{where}: {error} If another package has this {error.kind}, install that package or name its"
                " module with --import."
            ) from None
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{where} is not a whole model configuration ({error!r}).") from None
        if facts != model.config()["preprocessing"]:
            raise UserError(f"{where} was made with another {model.backbone_name} than this version has.")
        return model


class FewShotClassifier:
    """A FewShotModel adapted to a task.

    classes: sorted where labels can be compared, else in the order in which they came
    """

    def __init__(self, model: FewShotModel, support: Tensor, labels: Sequence[Any]) -> None:
        """Adapt `model` to represented support examples [n, ...] with one label each."""
        listed = _list_of_labels(labels)
        if len(listed) != len(support):
            raise UserError(
                f"There are {len(support)} images and {len(listed)} labels; give one label an image."
            )
        classes = _distinct(listed)
        if len(classes) < 2:
            raise UserError(
                f"All examples are of class {classes[0]!r}; give examples of at least two classes."
            )
        number_of = {label: number for number, label in enumerate(classes)}
        self.classes = label_array(classes)
        self.model = model
        self.support: Tensor | None = support
        self.numbers = torch.tensor([number_of[label] for label in listed], device=support.device)
        with torch.no_grad(), evaluation_mode(model):
            self.posterior = _with_fixed_draws(model.posterior(support, self.numbers, len(classes)))
        self.cached_novelty: Novelty | None = None

    @classmethod
    def from_parts(
        cls,
        model: FewShotModel,
        classes: np.ndarray,
        posterior: Posterior,
        support: Tensor | None,
        numbers: Tensor | None,
        novelty: Novelty | None,
    ) -> "FewShotClassifier":
        """Put a classifier together from the parts that it was saved in."""
        classifier = cls.__new__(cls)
        classifier.model, classifier.classes, classifier.posterior = (
            model,
            classes,
            _with_fixed_draws(posterior),
        )
        classifier.support = support
        classifier.numbers = torch.empty(0, dtype=torch.int64) if numbers is None else numbers
        classifier.cached_novelty = novelty
        return classifier

    def predict_proba(
        self, items: Sequence[Any], *, cache: FeatureCache | None = None, reporter: Reporter = SILENT
    ) -> np.ndarray:
        """Return p(class | item), [n, n_classes] in the order of `classes`, with the model's temperature."""
        return self.probabilities(self._embed(items, cache=cache, reporter=reporter))

    def probabilities(self, represented: Tensor) -> np.ndarray:
        """Return p(class | item) of items as `FewShotModel.embed` represents them, [n, n_classes]."""
        with torch.no_grad(), evaluation_mode(self.model):
            log_prob = self.posterior.log_prob(represented)
            return apply_temperature(log_prob, self.model.temperature).exp().cpu().numpy()

    def predict(self, items: Sequence[Any]) -> np.ndarray:
        """Return the most probable class of each item."""
        return self.classes[self.predict_proba(items).argmax(-1)]

    def none_of_these(self, items: Sequence[Any], *, prevalence: float = 0.5) -> np.ndarray:
        """Return the probability [n] that each item is of no known class, see `GPLDLAClassifier`."""
        return self.novelty_of(self._embed(items), prevalence)

    def novelty_of(self, represented: Tensor, prevalence: float = 0.5) -> np.ndarray:
        """Return `none_of_these` of items as `FewShotModel.embed` represents them, [n]."""
        if not 0 < prevalence < 1:
            raise UserError(f"prevalence must lie between 0 and 1, not {prevalence!r}.")
        posterior = self._task_posterior()
        with torch.no_grad():
            return self.novelty().probability(posterior, represented, prevalence).cpu().numpy()

    def novelty(self) -> Novelty:
        """Return what `none_of_these` is computed with: calibrated on the support set, once."""
        if self.cached_novelty is None:
            self._task_posterior()
            support, head = self._kept_support(), self.model.head
            assert isinstance(head, GPLDLAAuto)
            with torch.no_grad(), evaluation_mode(head):
                self.cached_novelty = fit_novelty(head, support, self.numbers, len(self.classes))
        return self.cached_novelty

    def uncertainty(self, items: Sequence[Any]) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty in bits, each [n], see `GPLDLAClassifier`."""
        posterior = self._task_posterior()
        with torch.no_grad():
            parts = uncertainty_of(posterior, self._embed(items))
        return Uncertainty(*parts.T.cpu().numpy())

    def leave_one_out(self) -> np.ndarray:
        """Return the probabilities of each support example under the classifier that has not seen it.

        [n, n_classes]; NaN for the only example of a class. Closed form with the head "gpldla-auto", else one
        adaptation an example.
        """
        support, head, ways = self._kept_support(), self.model.head, len(self.classes)
        with torch.no_grad(), evaluation_mode(self.model):
            if isinstance(head, GPLDLAAuto):
                beta = self._task_posterior().beta
                log_prob = head.leave_one_out_log_prob(support, self.numbers, ways, None, beta)
            else:
                log_prob = torch.full((len(support), ways), math.nan)
                everyone = torch.arange(len(support), device=support.device)
                counts = torch.bincount(self.numbers, minlength=ways)
                for i in torch.nonzero(counts[self.numbers] > 1).flatten():
                    others = everyone != i
                    posterior = self.model.posterior(support[others], self.numbers[others], ways)
                    log_prob[i] = posterior.log_prob(support[i : i + 1])[0].cpu()
            return apply_temperature(log_prob, self.model.temperature).exp().cpu().numpy()

    def add(self, items: Sequence[Any], labels: Sequence[Any]) -> "FewShotClassifier":
        """Return a classifier that has seen these examples, of known or new classes, as well."""
        kept = self._kept_support()
        support = torch.cat([kept, self._embed(items)])
        known = _list_of_labels(self.classes[self.numbers.cpu().numpy()])
        return FewShotClassifier(self.model, support, [*known, *_list_of_labels(labels)])

    def to(self, device: str | torch.device) -> "FewShotClassifier":
        """Move to another device, in place, and return itself."""
        self.model.to(device)
        self.numbers = self.numbers.to(device)
        self.support = None if self.support is None else self.support.to(device)
        self.posterior = to_device(self.posterior, torch.device(device))
        return self

    def save(self, file: str | Path, *, support: bool = True) -> None:
        """Write one safetensors file; without the support examples nothing can be added later."""
        from gpldla.classifier.file import save_classifier

        save_classifier(self, Path(file), support=support)

    @classmethod
    def load(cls, file: str | Path) -> "FewShotClassifier":
        """Read what `save` wrote."""
        from gpldla.classifier.file import load_classifier

        return load_classifier(Path(file))

    def _embed(self, items: Sequence[Any], **options: Any) -> Tensor:
        return self.model.embed(_non_empty(items, self.model.backbone), **options)

    def _kept_support(self) -> Tensor:
        if self.support is None:
            raise UserError(
                "This classifier was saved without its support examples; save it with them, or fit it anew."
            )
        return self.support

    def _task_posterior(self) -> TaskPosterior:
        if not isinstance(self.posterior, TaskPosterior):
            raise UserError(
                f"The head {self.model.head_name!r} does not say this; use a model with 'gpldla-auto'."
            )
        return self.posterior


def _with_fixed_draws(posterior: Posterior) -> Posterior:
    """Fix the draws of a Monte Carlo predictive: a classifier's answers must survive its file."""
    linear = posterior.diagonal if isinstance(posterior, TaskPosterior) else posterior
    if isinstance(linear, LinearGPPosterior):
        linear.fix_draws()
    return posterior


def _non_empty(items: Any, backbone: Backbone) -> list[Any]:
    listed = list_items(items, backbone.reads)
    if not listed:
        raise UserError(f"There are no {backbone.reads}; give at least one.")
    return listed


def _list_of_labels(labels: Sequence[Any]) -> list[Any]:
    """Return labels as plain Python values."""
    listed = labels.tolist() if hasattr(labels, "tolist") else labels
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise UserError("Give a list of labels, not a single one.")
    listed = [label.item() if isinstance(label, np.generic) else label for label in listed]
    for place, label in enumerate(listed):
        if label is None or (isinstance(label, float) and math.isnan(label)):
            raise UserError(f"labels[{place}] is missing ({label!r}); leave out what has no label.")
    return listed


def _distinct(labels: list[Any]) -> list[Any]:
    try:
        distinct = dict.fromkeys(labels)
    except TypeError:
        raise UserError("Labels must be values such as strings, numbers or tuples, one an image.") from None
    try:
        return sorted(distinct)
    except TypeError:  # such as a string and a number
        return list(distinct)


def label_array(labels: list[Any]) -> np.ndarray:
    """Return strings or numbers as an array of those, anything else as an array of objects."""
    kinds = {type(label) for label in labels}
    if len(kinds) == 1 and kinds <= {str, int, float, bool}:
        array = np.array(labels)
        if array.tolist() == labels:  # not so with numbers beyond 64 bits, or a string that ends in \0
            return array
    return np.fromiter(labels, dtype=object, count=len(labels))


def _plain(value: Any) -> Any:
    """Return a number or list where numpy or torch have their own, which JSON does not know."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray, Tensor)) else value
