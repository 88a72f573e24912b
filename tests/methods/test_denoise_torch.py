"""`nonlocal_means` against a literal loop, `denoise_unet` against a network made of SciPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import correlate

from maxslices import ArraySpec, plan
from maxslices.errors import MaxslicesError
from maxslices_methods._safetensors import read_shapes, read_tensors, write_tensors
from maxslices_methods._unet_shape import UNetShape, shape_of_file
from maxslices_methods.denoise_torch import denoise_unet, nonlocal_means

torch = pytest.importorskip("torch")
WEIGHTS = str(Path(__file__).parent / "data" / "unet.safetensors")


def noisy(shape=(3, 19, 17), seed=0):
    rng = np.random.default_rng(seed)
    clean = np.zeros(shape, np.float32)
    clean[:, shape[1] // 3 :, shape[2] // 4 :] = 1
    return clean + rng.normal(0, 0.2, shape).astype(np.float32)


def run(method, data, *args, **parameters):
    return method(torch.from_numpy(data), *args, **parameters).numpy()


def nlm_literally(plane, strength, noise, kernel, search):
    """Return the weighted means; `kernel` has the weights of the pixels of the surroundings."""
    n, reach = len(kernel), search // 2
    before, margin = (n - 1) // 2, n + reach
    wide = np.pad(plane.astype(float), margin, mode="symmetric")

    def around(y, x):
        return wide[y - before : y - before + n, x - before : x - before + n]

    result = np.zeros(plane.shape)
    for y, x in np.ndindex(plane.shape):
        cy, cx = y + margin, x + margin
        here = around(cy, cx)
        total = weights = 0.0
        for ty in range(cy - reach, cy + reach + 1):
            for tx in range(cx - reach, cx + reach + 1):
                differences = (here - around(ty, tx)) ** 2 - 2 * noise**2
                distance = max((kernel * differences).sum(), 0) / strength**2
                weight = np.exp(-distance)
                total += weight * wide[ty, tx]
                weights += weight
        result[y, x] = total / weights
    return result


def square(n, side):
    return np.full((n, n), 1 / side**2)


@pytest.mark.parametrize("patch, search, noise", [(3, 5, 0.0), (5, 3, 0.2), (1, 7, 0.1)])
def test_nonlocal_means_is_the_weighted_mean(patch, search, noise):
    data = noisy((2, 11, 9))
    result = run(nonlocal_means, data, 0.3, noise, patch, search)
    expected = [nlm_literally(each, 0.3, noise, square(patch, patch), search) for each in data]
    assert np.abs(expected - data).max() > 0.1
    np.testing.assert_allclose(result, expected, atol=2e-6)


def net_by_scipy(plane, weights, levels):
    """Return a slice denoised, beyond whose edges there are enough mirrored pixels."""
    convolutions = iter(UNetShape(weights["down.0.0.bias"].size, levels).convolutions())

    def convolved(x):
        name = next(convolutions)[0]
        kernels, biases = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return np.stack(
            [
                sum(correlate(a, k, mode="constant") for a, k in zip(x, kernel, strict=True)) + bias
                for kernel, bias in zip(kernels.astype(float), biases, strict=True)
            ]
        )

    halo = 24
    tall, wide = (-(-n // 4) * 4 - n + halo for n in plane.shape)
    source = np.pad(plane.astype(float), ((halo, tall), (halo, wide)), mode="symmetric")
    x = ((source - weights["mean"]) / weights["scale"])[None]
    kept = []
    for level in range(levels):
        if level:
            kept.append(x)
            x = (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4
        x = np.maximum(convolved(x), 0)
        x = np.maximum(convolved(x), 0)
    for _ in range(levels - 1):
        x = np.concatenate([kept.pop(), x.repeat(2, axis=1).repeat(2, axis=2)])
        x = np.maximum(convolved(x), 0)
        x = np.maximum(convolved(x), 0)
    result = source - convolved(x)[0] * weights["scale"]
    return result[halo:-tall, halo:-wide]


@pytest.mark.parametrize("tile", [32, 512])
def test_the_network_is_that_of_its_description(tile):
    data = noisy((1, 45, 38))
    expected = net_by_scipy(data[0], read_tensors(WEIGHTS), 3)
    assert np.abs(expected - data[0]).max() > 0.01
    np.testing.assert_allclose(run(denoise_unet, data, WEIGHTS, tile)[0], expected, atol=2e-6)


@pytest.mark.parametrize("size", [UNetShape(3, 1), UNetShape(2, 2), UNetShape(1, 4)])
def test_the_halo_is_enough_and_not_much_more(size):
    from maxslices_methods._unet import denoise, new_weights

    torch.manual_seed(0)
    weights = new_weights(size, 0, 1)
    for name, each in weights.items():
        if name.endswith("weight"):
            each.abs_().add_(0.01)  # so that everything has an effect
    side = 4 * size.halo + size.step
    image = torch.ones(1, 1, side, side)
    other = image.clone()
    other[..., side // 2, side // 2] += 1
    changed = (denoise(weights, size, image) != denoise(weights, size, other))[0, 0]
    rows = torch.nonzero(changed.any(1)).ravel()
    reach = int(max(side // 2 - rows.min(), rows.max() - side // 2))
    assert reach <= size.halo <= reach + 2 * size.step


def other_weights(path, change):
    tensors = dict(read_tensors(WEIGHTS))
    change(tensors)
    write_tensors(path, tensors)


WRONG_WEIGHTS = {
    "shape": (
        lambda t: t.update({"down.1.0.bias": np.zeros(9, np.float32)}),
        r"does not have the weights of denoise_unet: down\.1\.0\.bias is 9 instead of 8$",
    ),
    "missing": (lambda t: t.pop("last.weight"), r"last\.weight 1x4x1x1 is missing$"),
    "unknown": (
        lambda t: t.update(head=np.zeros((2, 3), np.float32)),
        r"head 2x3 is unknown$",
    ),
    "all": (
        lambda t: [t.clear(), t.update({"conv1.weight": np.zeros((64, 3, 7, 7), np.float32)})],
        r"mean a number is missing, scale a number is missing, .*, and \d more$",
    ),
}


@pytest.mark.parametrize("change, message", WRONG_WEIGHTS.values(), ids=WRONG_WEIGHTS)
def test_weights_of_another_model_are_named(tmp_path, change, message):
    path = tmp_path / "w.safetensors"
    other_weights(path, change)
    with pytest.raises(ValueError, match=message):
        shape_of_file(str(path))
    with pytest.raises(ValueError, match=message):
        run(denoise_unet, noisy(), str(path))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_refused(tmp_path, zipped):
    path = tmp_path / "w.pt"
    torch.save({"a": torch.ones(3)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"w\.pt is a pickle.*could run code.*weights_only=True"):
        read_shapes(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 30,
        b"\x02" + b"\0" * 7 + b"[]",
    ],
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a safetensors file"):
        read_shapes(path)


def test_a_dtype_that_numpy_lacks_is_named(tmp_path):
    path = tmp_path / "w.safetensors"
    text = b'{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 4)
    with pytest.raises(ValueError, match=r"numbers without a NumPy dtype: .*bfloat16"):
        read_tensors(path)


def test_an_array_that_is_not_contiguous_comes_back_as_it_is(tmp_path):
    path = tmp_path / "w.safetensors"
    values = np.arange(6.0).reshape(2, 3).T
    write_tensors(path, {"a": values, "b": np.float32(2)})
    np.testing.assert_array_equal(read_tensors(path)["a"], values)
    assert read_shapes(path) == {"a": (3, 2), "b": ()}


def test_a_plan_says_that_the_weights_are_missing():
    step = {"method": "denoise_unet", "parameters": {"weights": "nowhere.safetensors"}}
    with pytest.raises(MaxslicesError, match=r"weights cannot be read from nowhere\.safetensors"):
        plan(ArraySpec((40, 100, 120), "float32"), [step], device="cpu", memory="64MB")
