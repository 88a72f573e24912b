"""Results from the cache equal the results of the operators."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from maxslices.nn.replay import shape_rules

aten = torch.ops.aten


def meta(*shape, **options):
    return torch.empty(shape, device="meta", **options)


def last(*shape):
    return meta(*shape).to(memory_format=torch.channels_last)


def norm(x, training):
    c = x.shape[1]
    one = meta(c)
    return aten.native_batch_norm.default, (x, one, one, one, one, training, 0.1, 1e-5)


CALLS = [
    norm(meta(2, 3, 8, 8), True),
    norm(meta(2, 3, 8, 8), False),
    norm(last(2, 3, 8, 8), True),
    norm(meta(2, 3, 8, 8, dtype=torch.float16), True),
    (
        aten.native_batch_norm_backward.default,
        (meta(2, 3, 8), meta(2, 3, 8), None, None, None, meta(3), meta(3), True, 1e-5,
         [True, False, False]),
    ),
    (aten.native_layer_norm.default, (meta(4, 5, 6), [6], meta(6), meta(6), 1e-5)),
    (aten.gelu_backward.default, (meta(4, 5), meta(4, 5))),
    (aten.add.Tensor, (meta(4, 1), meta(5, dtype=torch.float64))),
    (aten.add.Tensor, (meta(4, 1), 1)),
    (aten.add.Tensor, (meta(4, 1, dtype=torch.int64), 1.0)),
    (aten.add.Tensor, (meta(4, 1, dtype=torch.int64), 1)),
    (aten.add.Tensor, (meta(4, 1, dtype=torch.bool), True)),
    (aten.clone.default, (meta(4, 5).t(),)),
    (aten.cat.default, ([meta(2, 3), meta(4, 3)],)),
    (aten.cat.default, ([meta(2, 3), meta(4, 3, dtype=torch.float64)],)),
    (aten.index.Tensor, (meta(5, 4, 3), [None, meta(7, dtype=torch.int64)])),
    (aten.index.Tensor, (meta(5, 4, 3), [meta(7, 2, dtype=torch.int64)])),
    (aten.index_put.default, (meta(5, 3), [meta(7, dtype=torch.int64)], meta(7, 3), True)),
    (aten._foreach_sqrt.default, ([meta(4, 5).t(), meta(3, dtype=torch.int64), meta(4, 5)],)),
    (aten._foreach_div.ScalarList, ([meta(4, 5), meta(3)], [1.0, 2.0])),
    (aten._foreach_norm.Scalar, ([meta(4, 5), meta(3)], 2)),
    (aten.max_pool2d_with_indices.default, (meta(1, 2, 9, 9), [2, 2])),
]  # fmt: skip


def described(result):
    if isinstance(result, torch.Tensor):
        return tuple(result.shape), result.stride(), result.dtype, result.untyped_storage().nbytes()
    return [None if each is None else described(each) for each in result]


def test_what_is_remembered_is_what_the_operator_makes():
    for _ in range(2):  # the second time from memory
        for func, args in CALLS:
            assert described(shape_rules.run_operator(func, args, {})) == described(func(*args)), (
                func
            )


def test_views_stay_views_and_real_tensors_are_computed():
    x = meta(3, 4)
    for _ in range(2):
        result = shape_rules.run_operator(aten.t.default, (x,), {})
        assert result.untyped_storage()._cdata == x.untyped_storage()._cdata
        real = shape_rules.run_operator(aten.add.Tensor, (torch.ones(2), torch.ones(2)), {})
        assert real.tolist() == [2.0, 2.0]


def test_lists_of_real_tensors_are_changed_in_place_and_those_without_data_left():
    counters = [torch.zeros(()), torch.zeros(())]
    shape_rules.run_operator(aten._foreach_add_.Scalar, (counters, 1), {})
    assert [float(c) for c in counters] == [1.0, 1.0]
    assert shape_rules.run_operator(aten._foreach_add_.Scalar, ([meta(2)], 1), {}) is None


def test_the_default_dtype_is_part_of_what_is_remembered():
    x = meta(3, dtype=torch.int64)
    assert shape_rules.run_operator(aten.div.Tensor, (x, x), {}).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert shape_rules.run_operator(aten.div.Tensor, (x, x), {}).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
