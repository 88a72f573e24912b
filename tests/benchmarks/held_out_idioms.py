"""Idioms of training steps, none of which the rules of prediction were tuned to.

``IDIOMS`` lists cases of the same kind as those of ``held_out_networks``. The idiom is in the
model, in the loss, or in the training loop, for which a case has a ``step`` of its own.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import random
from functools import partial

import numpy as np

try:
    import torch
except ImportError:  # pytest imports this file to look for doctests
    import pytest

    pytest.skip("torch is not installed", allow_module_level=True)

from torch import distributions, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, rnn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from .held_out_networks import (
    TRAINING,
    Case,
    Net,
    Parts,
    case,
    classifies,
    convs,
    images,
    labels,
    like,
    mlp,
    pooled,
    repeated,
    token_loss,
    tokens,
)

IDIOMS: list[Case] = []


def conv_net(n_in, n_out, width, n_layers=3):
    """Convolutions with ReLU."""
    return convs(n_in, *[width] * (n_layers - 1), n_out)


def classifier(n_in, n_classes, width, n_layers=4):
    """Convolutions, the mean over the image, and a linear layer."""
    return nn.Sequential(
        conv_net(n_in, width, width, n_layers), nn.ReLU(), *pooled(width, n_classes)
    )


def two_images(side):
    """A maker of batches of two random images each."""
    return lambda n: (torch.randn(n, 3, side, side), torch.randn(n, 3, side, side))


# --- Chance on the host ---------------------------------------------------------------------------


def stochastic_depth(chance, width, side, n_blocks):
    """Residual blocks that are left out by the given chance in training."""

    def forward(m, x):
        x = m.first(x)
        for block in m.blocks:
            if m.training and m.chance():
                continue
            x = x + block(x)
        return m.head(x.mean((2, 3)))

    def block():
        conv = partial(nn.Conv2d, width, width, 3, padding=1)
        return nn.Sequential(conv(), nn.BatchNorm2d(width), nn.ReLU(), conv())

    model = Net(
        forward, first=nn.Conv2d(3, width, 3, padding=1), blocks=repeated(n_blocks, block),
        head=nn.Linear(width, 10), chance=chance,
    )  # fmt: skip
    return classifies(model, 10, 3, side, side)


@case(IDIOMS, 8)
def stochastic_depth_torch(width=64, side=192, n_blocks=6):
    """Stochastic depth by torch.rand on the host."""
    return stochastic_depth(lambda: bool(torch.rand(1, device="cpu") < 0.2), width, side, n_blocks)


@case(IDIOMS, 8)
def stochastic_depth_numpy(width=64, side=192, n_blocks=6):
    """Stochastic depth by a generator of NumPy."""
    rng = np.random.default_rng(3)
    return stochastic_depth(lambda: rng.random() < 0.2, width, side, n_blocks)


@case(IDIOMS, 8)
def stochastic_depth_random(width=64, side=192, n_blocks=6):
    """Stochastic depth by Python's random module."""
    return stochastic_depth(lambda: random.random() < 0.2, width, side, n_blocks)


# --- Gradients of gradients -----------------------------------------------------------------------


@case(IDIOMS, 8)
def gradient_penalty(width=48, side=128):
    """Gradient penalty by torch.autograd.grad in forward, which returns the critic's loss."""

    def forward(m, real, fake):
        share = torch.rand(len(real), 1, 1, 1, device=real.device)
        between = (share * real + (1 - share) * fake).requires_grad_(True)
        (gradient,) = torch.autograd.grad(
            m.critic(between).sum(), between, create_graph=True, retain_graph=True
        )
        penalty = (gradient.flatten(1).norm(2, dim=1) - 1).square().mean()
        return m.critic(fake).mean() - m.critic(real).mean() + 10 * penalty

    model = Net(forward, critic=classifier(3, 1, width))
    return Parts(model, two_images(side), modes=TRAINING)


class ForceField(nn.Module):
    """Energy of atoms from their distances, and forces as its gradient."""

    def __init__(self, width, n_centers):
        super().__init__()
        self.register_buffer("centers", torch.linspace(0, 5, n_centers))
        self.pair = mlp(n_centers, width, width, 1, act=nn.SiLU)

    def forward(self, positions):
        with torch.enable_grad():
            positions = positions.detach().requires_grad_(True)
            gaps = positions[:, :, None] - positions[:, None]
            n_atoms = positions.shape[1]
            is_other = ~torch.eye(n_atoms, dtype=torch.bool, device=positions.device)
            distances = (gaps.square().sum(-1) + 1e-6).sqrt()
            basis = torch.exp(-(distances[..., None] - self.centers).square())
            energy = (self.pair(basis).squeeze(-1) * is_other).sum((1, 2))
            (gradient,) = torch.autograd.grad(
                energy, positions, torch.ones_like(energy), create_graph=self.training
            )
        return {"energy": energy, "forces": -gradient}


@case(IDIOMS, 16)
def force_field(width=128, n_centers=32, n_atoms=96):
    """Force field: loss of energy and of its gradient by positions."""

    def targets(n):
        return {"energy": torch.randn(n), "forces": torch.randn(n, n_atoms, 3)}

    def loss(output, target):
        energy = functional.mse_loss(output["energy"], target["energy"])
        return energy + 100 * functional.mse_loss(output["forces"], target["forces"])

    return Parts(
        ForceField(width, n_centers),
        lambda n: (torch.randn(n, n_atoms, 3),),
        loss,
        targets,
    )


@case(IDIOMS, 64)
def meta_learning(width=512, n_points=256):
    """Meta learning by torch.func: grad inside of vmap, and functional_call."""

    def task_loss(m, parameters, x, y):
        return functional.mse_loss(torch.func.functional_call(m.net, parameters, (x,)), y)

    def forward(m, *given):
        def adapted_loss(x, y, x_after, y_after):
            parameters = dict(m.net.named_parameters())
            gradients = torch.func.grad(partial(task_loss, m))(parameters, x, y)
            adapted = {k: p - 0.01 * gradients[k] for k, p in parameters.items()}
            return task_loss(m, adapted, x_after, y_after)

        return torch.func.vmap(adapted_loss)(*given).mean()

    model = Net(forward, net=mlp(1, width, width, 1, act=nn.Tanh))
    return Parts(
        model, lambda n: tuple(torch.randn(n, n_points, 1) for _ in range(4)), modes=TRAINING
    )


class Ensemble(nn.Module):
    """Models whose parameters are stacked, and which are called at once."""

    def __init__(self, width, n_models):
        super().__init__()
        models = [classifier(3, 10, width) for _ in range(n_models)]
        parameters, _ = torch.func.stack_module_state(models)
        self.names = list(parameters)
        self.stacked = nn.ParameterList(parameters[k].detach().clone() for k in self.names)
        self.base = [copy.deepcopy(models[0]).to("meta")]  # in a list, so not a submodule

    def forward(self, x):
        parameters = dict(zip(self.names, self.stacked, strict=True))

        def one(parameters, x):
            return torch.func.functional_call(self.base[0], parameters, (x,))

        return torch.func.vmap(one, in_dims=(0, None))(parameters, x)


@case(IDIOMS, 8)
def vmap_ensemble(width=32, side=96, n_models=6):
    """An ensemble by vmap over stacked parameters."""

    def loss(output, target):
        repeated = target.repeat(n_models)
        return functional.cross_entropy(output.flatten(0, 1), repeated)

    return Parts(Ensemble(width, n_models), images(3, side, side), loss, labels(10))


@case(IDIOMS, 64)
def per_sample_gradients(width=32, side=64):
    """Differentially private training: gradients of each sample by vmap, clipped and noised."""
    model = classifier(3, 10, width)

    def step(model, optimizer, inputs, targets):
        parameters = {k: p.detach() for k, p in model.named_parameters()}

        def loss_of_one(parameters, x, y):
            output = torch.func.functional_call(model, parameters, (x[None],))
            return functional.cross_entropy(output, y[None])

        per_sample = torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0))
        gradients = per_sample(parameters, *inputs, targets)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        factors = (1 / (norms + 1e-6)).clamp(max=1)
        for name, p in model.named_parameters():
            total = torch.einsum("n,n...->...", factors, gradients[name])
            p.grad = (total + 0.1 * torch.randn_like(p)) / len(factors)
        optimizer.step()
        optimizer.zero_grad()
        return norms.mean()

    return classifies(model, 10, 3, side, side, optimizer=torch.optim.SGD, step=step)


@case(IDIOMS, 8)
def double_backward(width=48, side=128):
    """Sharpness: the norm of the gradient by the parameters is in the loss."""
    layers = convs(3, width, width, act=nn.Softplus, ends=True)
    model = nn.Sequential(*layers, *pooled(width, 10))

    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(*inputs), targets)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        norm = sum(g.square().sum() for g in gradients)
        (loss + 0.1 * norm).backward()
        optimizer.step()
        return loss.item(), norm.item()

    return classifies(model, 10, 3, side, side, step=step)


@case(IDIOMS, 65536)
def physics_informed(width=128):
    """A differential equation in the loss: second derivatives by inputs."""

    def residual(m, x, t):
        x, t = x.requires_grad_(), t.requires_grad_()
        u = m.net(torch.cat([x, t], dim=1))
        ones = torch.ones_like(u)
        u_x, u_t = torch.autograd.grad(u, (x, t), ones, create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x, x, ones, create_graph=True)
        return u_t - 0.1 * u_xx

    return Parts(
        Net(residual, net=mlp(2, width, width, width, 1, act=nn.Tanh)),
        lambda n: (torch.rand(n, 1), torch.rand(n, 1)),
        lambda residual: residual.square().mean(),
        modes=TRAINING,
    )


# --- Loops ----------------------------------------------------------------------------------------


def two_heads(width):
    """A trunk with two heads."""

    def forward(m, x):
        x = m.trunk(x).relu()
        return m.depth(x), m.classes(x)

    return Net(
        forward, trunk=conv_net(3, width, width, 4), depth=nn.Conv2d(width, 1, 1),
        classes=nn.Conv2d(width, 6, 1),
    )  # fmt: skip


def two_targets(side):
    """Depths, and classes of pixels."""
    return lambda n: (torch.rand(n, 1, side, side), torch.randint(0, 6, (n, side, side)))


def both_losses(output, target):
    """Smooth error of the depth plus cross entropy, weighted."""
    depth = functional.smooth_l1_loss(output[0], target[0])
    return depth + 0.5 * functional.cross_entropy(output[1], target[1])


@case(IDIOMS, 8)
def retain_graph(width=64, side=192):
    """Two backward passes through one trunk, the first with retain_graph."""

    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        depth, classes = model(*inputs)
        loss_1 = functional.smooth_l1_loss(depth, targets[0])
        loss_2 = functional.cross_entropy(classes, targets[1])
        loss_1.backward(retain_graph=True)
        loss_2.backward()
        optimizer.step()
        return loss_1, loss_2

    return Parts(two_heads(width), images(3, side, side), both_losses, two_targets(side), step=step)


@case(IDIOMS, 8)
def multiple_losses(width=64, side=192):
    """A weighted sum of two losses with one backward pass."""
    return Parts(two_heads(width), images(3, side, side), both_losses, two_targets(side))


@case(IDIOMS, 32)
def gradient_accumulation(width=64, side=192):
    """Gradients of parts of the batch are added up, clipped, and applied."""

    def step(model, optimizer, inputs, targets):
        parts = 4
        total = 0.0
        for x, y in zip(inputs[0].chunk(parts), targets.chunk(parts), strict=True):
            loss = functional.cross_entropy(model(x), y) / parts
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return classifies(
        classifier(3, 10, width), 10, 3, side, side, optimizer=torch.optim.AdamW, step=step
    )


@case(IDIOMS, 65536)
def closure_optimizer(width=256):
    """LBFGS, which calls a closure several times a step."""

    def step(model, optimizer, inputs, targets):
        def closure():
            optimizer.zero_grad()
            loss = functional.mse_loss(model(*inputs), targets)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return Parts(
        mlp(2, width, width, width, 1, act=nn.Tanh), lambda n: (torch.rand(n, 2),), nn.MSELoss(),
        lambda n: torch.rand(n, 1), torch.optim.LBFGS, step=step,
        make_optimizer=lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=5),
        n_steps=25,  # its history of 100 is full after 20
    )  # fmt: skip


@case(IDIOMS, 256)
def adversarial_pair(width=64, n_latent=128):
    """A generator and a discriminator, each with an optimizer, in one step."""
    generator = nn.Sequential(
        nn.ConvTranspose2d(n_latent, 4 * width, 4), nn.BatchNorm2d(4 * width), nn.ReLU(),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, 4), nn.Tanh(),
    )  # fmt: skip
    discriminator = nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 4), nn.LeakyReLU(0.2), nn.Flatten(),
        nn.Linear(64 * width, 1),
    )  # fmt: skip

    class Pair(nn.Module):
        """Generator and discriminator. The output is the generator's image of noise."""

        def __init__(self):
            super().__init__()
            self.generator, self.discriminator = generator, discriminator

        def forward(self, real):
            return self.generator(torch.randn(len(real), n_latent, 1, 1, device=real.device))

    def step(model, optimizer, inputs, targets):
        for_generator, for_discriminator = optimizer
        (real,) = inputs
        ones, zeros = real.new_ones(len(real), 1), real.new_zeros(len(real), 1)
        entropy = functional.binary_cross_entropy_with_logits

        for_discriminator.zero_grad()
        fake = model(real)
        loss_d = entropy(model.discriminator(real), ones)
        loss_d = loss_d + entropy(model.discriminator(fake.detach()), zeros)
        loss_d.backward()
        for_discriminator.step()

        for_generator.zero_grad()
        loss_g = entropy(model.discriminator(fake), ones)
        loss_g.backward()
        for_generator.step()
        return loss_d.item(), loss_g.item()

    def two_optimizers(model):
        return tuple(
            torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.999))
            for part in (model.generator, model.discriminator)
        )

    return Parts(Pair(), images(3, 64, 64), step=step, make_optimizer=two_optimizers)


class Distilled(nn.Module):
    """A student that is trained, and a larger teacher that is not."""

    def __init__(self, width):
        super().__init__()
        self.student = classifier(3, 10, width)
        self.teacher = classifier(3, 10, 2 * width, 6).requires_grad_(False)

    def forward(self, x):
        if not self.training:
            return self.student(x)
        self.teacher.eval()
        with torch.no_grad():
            soft = (self.teacher(x) / 4).softmax(dim=1)
        return self.student(x), soft


@case(IDIOMS, 8)
def teacher_and_student(width=64, side=192):
    """Distillation: a teacher under no_grad, a student, and the divergence of both."""

    def loss(output, target):
        logits, soft = output
        divergence = functional.kl_div((logits / 4).log_softmax(dim=1), soft, reduction="batchmean")
        return 16 * divergence + functional.cross_entropy(logits, target)

    return Parts(Distilled(width), images(3, side, side), loss, labels(10))


@case(IDIOMS, 8)
def averaged_weights(width=128, side=160):
    """An exponential moving average of the weights, after each step."""
    model = classifier(3, 10, width)
    average = copy.deepcopy(model).requires_grad_(False)

    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.001)
        return loss

    return classifies(model, 10, 3, side, side, step=step)


@case(IDIOMS, 8)
def logging_by_item(width=64, side=192):
    """Loss and accuracy are logged with .item(), and a history keeps the numbers."""
    history = []

    def step(model, optimizer, inputs, targets):
        output = model(*inputs)
        loss = functional.cross_entropy(output, targets)
        correct = (output.argmax(dim=1) == targets).float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append((loss.item(), correct.item()))
        if not math.isfinite(history[-1][0]):
            raise RuntimeError("the loss is not finite")
        return history[-1]

    return classifies(classifier(3, 10, width), 10, 3, side, side, step=step)


class KeepsState(nn.Module):
    """LSTM that keeps its state from one part of a text to the next."""

    def __init__(self, n_tokens, width):
        super().__init__()
        self.embed = nn.Embedding(n_tokens, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, n_tokens)
        self.state = None

    def forward(self, tokens):
        if self.state is not None and self.state[0].shape[1] != len(tokens):
            self.state = None
        output, state = self.lstm(self.embed(tokens), self.state)
        self.state = tuple(s.detach() for s in state)
        return self.head(output)


@case(IDIOMS, 32)
def truncated_time(n_tokens=8000, width=512, length=64):
    """Truncated backpropagation: the state is detached and kept between steps."""

    return Parts(
        KeepsState(n_tokens, width), tokens(n_tokens, length), token_loss,
        labels(n_tokens, length), n_steps=3,
    )  # fmt: skip


class WithQueue(nn.Module):
    """Contrastive learning against a queue of earlier keys, which starts at the third step."""

    def __init__(self, width, n_queue, n_warm_up=2):
        super().__init__()
        self.query = classifier(3, 64, width)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.n_warm_up, self.n_calls = n_warm_up, 0
        self.register_buffer("queue", functional.normalize(torch.randn(n_queue, 64), dim=1))

    def forward(self, first, second):
        q = functional.normalize(self.query(first), dim=1)
        with torch.no_grad():
            for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
                slow.mul_(0.99).add_(fast, alpha=0.01)
            k = functional.normalize(self.key(second), dim=1)
        near = (q * k).sum(dim=1, keepdim=True)
        far = q @ self.queue.clone().t()
        target = torch.zeros(len(q), dtype=torch.long, device=q.device)
        if self.training:
            self.n_calls += 1
            if self.n_calls > self.n_warm_up:
                self.queue = torch.cat([k, self.queue])[: len(self.queue)]
        return functional.cross_entropy(torch.cat([near, far], dim=1) / 0.07, target)


@case(IDIOMS, 16)
def queue_of_keys(width=64, side=192, n_queue=65536):
    """Buffer that is replaced from the third step on, in a model that returns its loss."""
    return Parts(
        WithQueue(width, n_queue),
        two_images(side),
        n_steps=4,
    )


# --- Inputs, outputs and shapes -------------------------------------------------------------------


@case(IDIOMS, 64)
def packed_sequences(n_in=64, width=256, length=256):
    """Packed sequences of several lengths."""

    def forward(m, x, lengths):
        packed = rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, _ = rnn.pad_packed_sequence(m.gru(packed)[0], batch_first=True)
        return m.head(output[torch.arange(len(x), device=x.device), lengths.to(x.device) - 1])

    def inputs(n):
        lengths = torch.linspace(length // 2, length, n, device="cpu").long()
        return torch.randn(n, length, n_in), lengths

    gru = nn.GRU(n_in, width, 2, batch_first=True, bidirectional=True)
    model = Net(forward, gru=gru, head=nn.Linear(2 * width, 5))
    return Parts(model, inputs, nn.CrossEntropyLoss(), labels(5))


@case(IDIOMS, 16384)
def distribution_vae(n_in=784, width=1024, n_latent=32):
    """torch.distributions in a variational autoencoder: rsample, log_prob and the divergence."""

    def forward(m, x):
        mean, raw = m.encoder(x).chunk(2, dim=-1)
        posterior = distributions.Normal(mean, functional.softplus(raw) + 1e-4)
        prior = distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        z = posterior.rsample()
        likelihood = distributions.Independent(
            distributions.Normal(m.decoder(z), m.log_scale.exp()), 1
        )
        divergence = distributions.kl_divergence(posterior, prior).sum(-1)
        return (divergence - likelihood.log_prob(x)).mean()

    model = Net(
        forward,
        encoder=mlp(n_in, width, width, 2 * n_latent, act=nn.Tanh),
        decoder=mlp(n_latent, width, width, n_in, act=nn.Tanh),
        log_scale=nn.Parameter(torch.zeros(())),
    )
    return Parts(model, images(n_in))


@case(IDIOMS, 65536)
def clipped_policy(width=512):
    """Policy gradient with clipped ratios, from Normal.log_prob, entropy and values of states."""

    def forward(m, states, actions):
        normal = distributions.Normal(m.mean(states), m.log_scale.exp())
        log_prob = normal.log_prob(actions).sum(-1)
        return log_prob, normal.entropy().sum(-1), m.value(states).squeeze(-1)

    def loss(output, target):
        log_prob, entropy, value = output
        ratio = torch.exp(log_prob - target["log_prob"])
        gain = target["gain"]
        clipped = ratio.clamp(0.8, 1.2) * gain
        surrogate = torch.min(ratio * gain, clipped).mean()
        return (value - target["value"]).square().mean() - surrogate - 0.01 * entropy.mean()

    def targets(n):
        return {"log_prob": -4 + torch.randn(n), "gain": torch.randn(n), "value": torch.randn(n)}

    model = Net(
        forward,
        mean=mlp(17, width, width, 6, act=nn.Tanh),
        value=mlp(17, width, width, 1, act=nn.Tanh),
        log_scale=nn.Parameter(torch.zeros(6)),
    )
    return Parts(model, lambda n: (torch.randn(n, 17), torch.randn(n, 6)), loss, targets)


@case(IDIOMS, 200000)
def scatter_in_place(width=128, n_cells=100000):
    """index_add_, scatter_add_ and scatter_reduce_ in place, into a grid and a histogram."""

    def forward(m, points, cells):
        values = m.point(points)
        grid = values.new_zeros(n_cells, values.shape[1])
        grid.index_add_(0, cells, values)
        largest = torch.zeros_like(grid)
        largest.scatter_reduce_(0, cells[:, None].expand_as(values), values, "amax")
        counts = values.new_zeros(n_cells)
        counts.scatter_add_(0, cells, torch.ones_like(values[:, 0]))
        mean = grid / counts.clamp(min=1)[:, None]
        return m.cell(torch.cat([mean, largest], dim=1)).squeeze(1)

    return Parts(
        Net(forward, point=mlp(3, width, width, width), cell=mlp(2 * width, width, width, 1)),
        lambda n: (torch.randn(n, 3), torch.randint(0, n_cells, (n,))),
        nn.MSELoss(),
        lambda n: torch.randn(n_cells),
    )


@case(IDIOMS, 8)
def dict_output(width=64, side=192):
    """A dictionary as output, and a loss that takes one key of it."""

    def forward(m, image):
        features = m.trunk(image).relu()
        output = {name: head(features) for name, head in m.heads.items()}
        output["features"] = features
        return output

    def loss(output, target):
        return functional.binary_cross_entropy_with_logits(output["heat"], target)

    trunk = conv_net(3, width, width, 4)
    heads = nn.ModuleDict({"heat": nn.Conv2d(width, 8, 1), "size": nn.Conv2d(width, 2, 1)})
    return Parts(
        Net(forward, trunk=trunk, heads=heads),
        lambda n: {"image": torch.randn(n, 3, side, side)}, loss,
        lambda n: torch.rand(n, 8, side, side),
    )  # fmt: skip


@case(IDIOMS, 4)
def list_input(width=48, side=192, n_levels=3):
    """A list of tensors as the input: images of several sizes."""

    def forward(m, pyramid):
        size = pyramid[0].shape[-2:]
        results = [
            functional.interpolate(level(x), size=size, mode="bilinear", align_corners=False)
            for level, x in zip(m.levels, pyramid, strict=True)
        ]
        return m.last(torch.stack(results).sum(0))

    def inputs(n):
        return ([torch.randn(n, 3, side >> i, side >> i) for i in range(n_levels)],)

    levels = repeated(n_levels, lambda: conv_net(3, width, width, 3))
    model = Net(forward, levels=levels, last=nn.Conv2d(width, 1, 1))
    return Parts(model, inputs, nn.L1Loss(), like(1, side, side))


@case(IDIOMS, 8)
def where_masked(width=64, side=192):
    """torch.where and masked_fill with boolean masks as inputs."""

    def forward(m, image, hidden):
        seen = image.masked_fill(hidden, 0)
        filled = m.net(torch.cat([seen, hidden[:, :1].to(image.dtype)], dim=1))
        return torch.where(hidden, filled, image)

    def inputs(n):
        hidden = (torch.rand(n, 1, side, side) < 0.5).expand(-1, 3, -1, -1)
        return torch.randn(n, 3, side, side), hidden

    model = Net(forward, net=conv_net(4, 3, width, 5))
    return Parts(model, inputs, nn.MSELoss(), like(3, side, side))


@case(IDIOMS, 8)
def selected_pixels(width=64, side=192):
    """masked_select and boolean indexing: the loss is of labelled and hard pixels alone."""

    def loss(output, target):
        known = target >= 0
        logits = output.permute(0, 2, 3, 1)[known]
        each = functional.cross_entropy(logits, target[known], reduction="none")
        hard = torch.masked_select(each, each > each.detach().median())
        return hard.mean() if hard.numel() else each.mean()

    return Parts(
        conv_net(3, 6, width, 4), images(3, side, side), loss,
        lambda n: torch.randint(-1, 6, (n, side, side)),
    )  # fmt: skip


# --- Parameters -----------------------------------------------------------------------------------


@case(IDIOMS, 8)
def weight_norm(width=96, length=16384):
    """Weight norm of convolutions, by parametrizations."""
    layers = []
    for i in range(4):
        conv = nn.Conv1d(1 if i == 0 else width, width, 5, padding=2 * 2**i, dilation=2**i)
        layers += [parametrizations.weight_norm(conv), nn.LeakyReLU(0.2)]
    model = nn.Sequential(*layers, parametrizations.weight_norm(nn.Conv1d(width, 1, 1)))
    return Parts(model, images(1, length), nn.L1Loss(), like(1, length))


class Symmetric(nn.Module):
    """Makes a matrix symmetric."""

    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


@case(IDIOMS, 4096)
def parametrized_layers(width=1024):
    """Orthogonal, spectrally normed and symmetric weights."""
    orthogonal = parametrizations.orthogonal(nn.Linear(width, width))
    normed = parametrizations.spectral_norm(nn.Linear(width, width))
    symmetric = nn.Linear(width, width)
    parametrize.register_parametrization(symmetric, "weight", Symmetric())
    model = nn.Sequential(
        nn.Linear(16, width), orthogonal, nn.ReLU(), normed, nn.ReLU(), symmetric, nn.ReLU(),
        nn.Linear(width, 4),
    )  # fmt: skip
    return Parts(
        model, lambda n: (torch.randn(n, 16),), nn.CrossEntropyLoss(), labels(4), torch.optim.SGD
    )


class HookedFeatures(nn.Module):
    """Takes features of inner layers by hooks, and clips gradients by hooks of tensors."""

    def __init__(self, width):
        super().__init__()
        self.net = conv_net(3, 3, width, 5)
        self.features = {}
        for name in ("1", "5"):
            self.net.get_submodule(name).register_forward_hook(self.keeper(name))

    def keeper(self, name):
        def keep(module, inputs, output):
            if output.requires_grad:
                output.register_hook(lambda gradient: gradient.clamp(-1, 1))
            self.features[name] = output

        return keep

    def forward(self, x):
        output = self.net(x)
        features = list(self.features.values())
        self.features.clear()
        return output, features


@case(IDIOMS, 8)
def hooks(width=64, side=192):
    """Forward hooks that keep features, and hooks on gradients, both in the loss."""

    def loss(output, target):
        image, features = output
        return functional.mse_loss(image, target) + 0.01 * sum(f.abs().mean() for f in features)

    return Parts(HookedFeatures(width), images(3, side, side), loss, like(3, side, side))


@case(IDIOMS, 8)
def checkpoints(width=64, side=192, n_blocks=5):
    """torch.utils.checkpoint around blocks and along a sequence, in training alone."""

    def forward(m, x):
        x = m.first(x)
        for block in m.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if m.training else block(x))
        if m.training:
            return checkpoint_sequential(m.tail, 2, x, use_reentrant=False)
        return m.tail(x)

    model = Net(
        forward,
        first=nn.Conv2d(3, width, 3, padding=1),
        blocks=repeated(n_blocks, lambda: conv_net(width, width, width, 4)),
        tail=conv_net(width, 3, width, 6),
    )
    return Parts(model, images(3, side, side), nn.MSELoss(), like(3, side, side))


@case(IDIOMS, 8)
def mixed_precision(width=64, side=192):
    """Autocast to bfloat16 around model and loss, with a gradient scaler."""
    layers = convs(3, width, width, norm=nn.BatchNorm2d, act=nn.GELU, ends=True)
    mean, flat, last = pooled(width, 10)
    model = nn.Sequential(*layers, mean, flat, nn.LayerNorm(width), last)

    def step(model, optimizer, inputs, targets):
        device = inputs[0].device.type
        scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(*inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return classifies(model, 10, 3, side, side, step=step)


@case(IDIOMS, 8)
def autocast_in_forward(width=64, side=192):
    """Autocast to bfloat16 inside of forward, and a softmax in float32 where it is off."""

    def forward(m, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            features = m.trunk(x)
            scores = m.query(features)
        with torch.autocast(x.device.type, enabled=False):
            weights = scores.float().flatten(2).softmax(dim=-1)
            pooled = (features.float().flatten(2) * weights).sum(-1)
        return m.head(pooled)

    model = Net(
        forward, trunk=conv_net(3, width, width, 4), query=nn.Conv2d(width, 1, 1),
        head=nn.Linear(width, 10),
    )  # fmt: skip
    return classifies(model, 10, 3, side, side)


@case(IDIOMS, 4)
def complex_parameters(width=24, side=128, n_layers=4):
    """Complex parameters and inputs, a ReLU of the magnitude, and a real loss."""

    def forward(m, x):
        for conv, bias in zip(m.convs, m.bias, strict=True):
            x = conv(x)
            size = x.abs()
            x = functional.relu(size + bias) * x / (size + 1e-6)
        return torch.einsum("nchw,c->nhw", x, m.mix)

    def loss(output, target):
        return torch.view_as_real(output - target).square().mean()

    widths = [1, *[width] * n_layers]
    conv = partial(nn.Conv2d, kernel_size=3, padding=1, dtype=torch.complex64)
    model = Net(
        forward,
        convs=nn.ModuleList(conv(a, b) for a, b in itertools.pairwise(widths)),
        bias=nn.Parameter(-0.01 * torch.ones(n_layers)),
        mix=nn.Parameter(torch.randn(width, dtype=torch.complex64)),
    )
    return Parts(
        model,
        lambda n: (torch.randn(n, 1, side, side, dtype=torch.complex64),),
        loss,
        lambda n: torch.randn(n, side, side, dtype=torch.complex64),
    )


@case(IDIOMS, 16)
def tied_weights(n_tokens=32000, width=512, length=128):
    """The embedding is the last layer's weight, and one body is used twice."""

    def forward(m, tokens):
        x = m.embed(tokens)
        x = x + m.body(x.cumsum(dim=1))
        return m.head(x + m.body(x))  # the same layers again

    model = Net(
        forward, embed=nn.Embedding(n_tokens, width),
        body=mlp(width, 4 * width, width, act=nn.GELU), head=nn.Linear(width, n_tokens, bias=False),
    )  # fmt: skip
    model.head.weight = model.embed.weight
    return Parts(
        model, tokens(n_tokens, length), token_loss, labels(n_tokens, length), torch.optim.AdamW
    )


class LowRank(nn.Module):
    """A frozen linear layer and a trained update of low rank."""

    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, linear.in_features) / rank)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + x @ self.a.t() @ self.b.t()


@case(IDIOMS, 512)
def low_rank_updates(width=2048, n_layers=8):
    """Frozen layers with trained updates of low rank."""
    layers = []
    for _ in range(n_layers):
        layers += [LowRank(nn.Linear(width, width), 2), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(width, 4))

    def loss(output, target):
        return (output.mean(dim=1) - target).abs().mean()

    return Parts(
        model,
        lambda n: (torch.randn(n, 16, width),),
        loss,
        lambda n: torch.randn(n, 4),
        torch.optim.AdamW,
    )


class FrozenTrunk(nn.Module):
    """A trunk that is frozen, its batch norms too, and a head that is trained."""

    def __init__(self, width):
        super().__init__()
        trunk = convs(3, width, width, norm=nn.BatchNorm2d, ends=True)
        self.trunk = trunk.requires_grad_(False)
        self.head = classifier(width, 10, width, 3)

    def train(self, mode=True):
        super().train(mode)
        self.trunk.eval()
        return self

    def forward(self, x):
        return self.head(self.trunk(x))


@case(IDIOMS, 8)
def frozen_layers(width=64, side=192):
    """A frozen trunk that stays in evaluation, and a trained head."""
    return classifies(FrozenTrunk(width), 10, 3, side, side)


class MemorySwish(torch.autograd.Function):
    """A swish that keeps its input alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * (s * (1 + x * (1 - s)))


class QuantizedWeight(torch.autograd.Function):
    """Rounds weights to eight bits, and lets gradients of those in range pass."""

    @staticmethod
    def forward(ctx, weight, n_bits):
        scale = weight.abs().max() / (2 ** (n_bits - 1) - 1)
        ctx.save_for_backward(weight.abs() <= 3 * weight.std())
        ctx.n_bits = n_bits
        return torch.round(weight / scale) * scale

    @staticmethod
    def backward(ctx, gradient):
        (in_range,) = ctx.saved_tensors
        return gradient * in_range, None


@case(IDIOMS, 8)
def custom_functions(width=64, side=192, n_layers=5):
    """Functions with a backward pass of their own, one of them for weights."""

    def forward(m, x):
        x = m.first(x)
        for conv in m.convs:
            weight = QuantizedWeight.apply(conv.weight, 8)
            x = MemorySwish.apply(functional.conv2d(x, weight, conv.bias, padding=1))
        return m.last(x)

    model = Net(
        forward, first=nn.Conv2d(3, width, 1),
        convs=repeated(n_layers, lambda: nn.Conv2d(width, width, 3, padding=1)),
        last=nn.Conv2d(width, 3, 1),
    )  # fmt: skip
    return Parts(model, images(3, side, side), nn.MSELoss(), like(3, side, side))


# --- More loops -----------------------------------------------------------------------------------


@case(IDIOMS, 16)
def adversarial_images(width=48, side=192):
    """Images are changed along their gradient first, and then the model is trained on them."""

    def step(model, optimizer, inputs, targets):
        (clean,) = inputs
        change = torch.zeros_like(clean, requires_grad=True)
        for _ in range(3):
            loss = functional.cross_entropy(model(clean + change), targets)
            (gradient,) = torch.autograd.grad(loss, change)
            with torch.no_grad():
                change += 0.01 * gradient.sign()
                change.clamp_(-0.03, 0.03)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(clean + change.detach()), targets)
        loss.backward()
        optimizer.step()
        return loss

    return classifies(
        classifier(3, 10, width), 10, 3, side, side, optimizer=torch.optim.SGD, step=step
    )


@case(IDIOMS, 8)
def scheduled_groups(width=128, side=160):
    """Two groups of parameters, a schedule, and a part that is trained from the second step on."""
    model = classifier(3, 10, width)
    count = {"steps": 0}

    def optimizer_and_schedule(model):
        decayed = [p for p in model.parameters() if p.ndim > 1]
        is_other = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed}, {"params": is_other, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)

    def step(model, optimizer, inputs, targets):
        optimizer, schedule = optimizer
        model[0].requires_grad_(count["steps"] >= 1)
        count["steps"] += 1
        with torch.no_grad() if count["steps"] < 2 else contextlib.nullcontext():
            features = model[0](*inputs)
        loss = functional.cross_entropy(model[1:](features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    return classifies(
        model, 10, 3, side, side, optimizer=torch.optim.AdamW, step=step,
        make_optimizer=optimizer_and_schedule, n_steps=3,
    )  # fmt: skip
