"""One-vs-rest Gaussian-process regression by GPyTorch, as the published GPDKT predicts; a reference."""

import gpytorch
import torch
from torch import Tensor


class _ClassGPs(gpytorch.models.ExactGP):  # type: ignore[misc, unused-ignore]  # GPyTorch has no types
    """A batch of exact GPs, one per class and episode, with the cosine kernel and a constant mean."""

    def __init__(self, x: Tensor, y: Tensor, likelihood: gpytorch.likelihoods.Likelihood) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.LinearKernel())

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """Return the prior of the targets at x [B, C, n, d]."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def predict_log_prob(support: Tensor, labels: Tensor, n_way: int, query: Tensor, *, steps: int = 0) -> Tensor:
    """Return the log-softmax of the posterior means, [B, n, d], [B, n], [B, q, d] → [B, q, C].

    All processes of all episodes are one batch, which is the fastest way to use GPyTorch here.

    steps: of Adam on the marginal likelihood, which fit kernel, mean and noise to the task first
    """
    unit = torch.nn.functional.normalize
    batch, n, d = support.shape
    x = unit(support, dim=-1).unsqueeze(1).expand(batch, n_way, n, d)
    y = 2.0 * (labels.unsqueeze(1) == torch.arange(n_way, device=labels.device).view(1, -1, 1)) - 1
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(support.device)
    likelihood.noise = 0.1
    model = _ClassGPs(x, y.to(x.dtype), likelihood).to(support.device)
    if steps:
        _learn(model, likelihood, steps)
    model.eval()
    new = unit(query, dim=-1).unsqueeze(1).expand(batch, n_way, -1, d)
    with torch.no_grad(), gpytorch.settings.skip_posterior_variances():
        means = model(new).mean  # [B, C, q]
    log_prob: Tensor = means.mT.log_softmax(-1)
    return log_prob


def _learn(model: _ClassGPs, likelihood: gpytorch.likelihoods.Likelihood, steps: int) -> None:
    """Maximise the marginal likelihood, with the optimiser and rate of GPyTorch's tutorials."""
    (x,), y = model.train_inputs, model.train_targets
    optimizer = torch.optim.Adam(model.train().parameters(), lr=0.1)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    for _ in range(steps):
        optimizer.zero_grad()
        (-marginal(model(x), y).sum()).backward()
        optimizer.step()
