"""GPLDLA with its prior as it was before it was measured: the same head, less what has been added since."""

from typing import Any

from torch import Tensor

from gpldla import GPLDLAClassifier
from gpldla.heads.gp.leave_one_out import LooStats, leave_one_out
from gpldla.heads.gp.linear_gp import LabelledFeatures
from gpldla.heads.gp.peak import ChosenBeta, most_probable_beta
from gpldla.heads.gp.strangers import default_beta
from gpldla.heads.gp.task_space import TaskSpace, mean_of_class_means, within_class_directions
from gpldla.heads.gpldla import GPLDLA, ClassStatistics
from gpldla.heads.gpldla_auto import GPLDLAAuto


class OldHead(GPLDLAAuto):
    """No root, no covariance from single examples, no shrinking of means, and β₀ = 3 / d^¼ at any shots."""

    def root_power(self, support: Tensor, present: Tensor | None = None) -> Tensor | None:
        """Return None: features are taken as they are."""
        return None

    def _merged(
        self, support: Tensor, labels: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        return support, labels, weights, None

    def fit_space(self, support: Tensor, member: Tensor) -> TaskSpace:
        """Centre, and whiten by the scatter within classes."""
        z = self._before_centre(support)
        directions, shrink = within_class_directions(z, member)
        center = mean_of_class_means(z, member)
        return TaskSpace(self.normalize_first, center, directions=directions, shrink=shrink)

    def class_statistics(self, support: LabelledFeatures) -> ClassStatistics:
        """Return the class means as they are."""
        return GPLDLA.class_statistics(self, support)

    def left_out(self, support: Tensor, member: Tensor, labelled: LabelledFeatures | None = None) -> LooStats:
        """Leave examples out one copy at a time."""
        z = self._before_centre(support)
        return leave_one_out(z, member, None, normalize=True, recentre=True, whiten=True)

    def choose_beta(
        self,
        support: Tensor,
        member: Tensor,
        space: TaskSpace,
        labelled: LabelledFeatures,
        statistics: ClassStatistics,
    ) -> ChosenBeta:
        """Return the β with the largest leave-one-out likelihood around the constant, as if it were known."""
        left_out = self.left_out(support, member)
        default = support.new_full(support.shape[:-2], default_beta(support.shape[-1]))
        chosen = most_probable_beta(
            default, lambda beta: self._loo_score(labelled, statistics, left_out, beta)
        )
        return ChosenBeta(chosen.value, None)


class OldGPLDLA(GPLDLAClassifier):
    """`GPLDLAClassifier` with the old rule; for tasks of fewer than 256 examples."""

    def _head(self, **changed: Any) -> OldHead:
        return OldHead(**changed).eval()
