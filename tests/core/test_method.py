from __future__ import annotations

import inspect
import pickle
import re
import traceback

import numpy as np
import pytest

import maxslices
from maxslices import ArraySpec, Pipeline, Registry, from_ledger, method
from maxslices.checking.estimate_check import check_trial, trial_of
from maxslices.core.method_meta import MethodMeta, MethodOptions
from maxslices.errors import EstimatorError, ParameterError, RegistrationError, UsageError


def declare(function, pattern="projection", **declaration):
    return method(pattern, registry=Registry(), **declaration)(function)


def estimate(slice_dim, other_dims, dtype, available_memory, **kwargs):
    per_slice = 2 * other_dims[0] * other_dims[1] * dtype.itemsize
    return available_memory // per_slice, dtype


def plain(data, *, strength: float = 1.0):
    return data * strength


def counting_frames(seen):
    """Estimators of both kinds that record the frames of maxslices between this file and them."""

    def note():
        frames = traceback.extract_stack()[:-2]
        test = max(i for i, frame in enumerate(frames) if frame.filename == __file__)
        seen.append([frame.name for frame in frames[test + 1 :]])

    def by_hand(slice_dim, other_dims, dtype, available_memory):
        note()
        return available_memory // 100, dtype

    @from_ledger
    def ledger(m, shape, dtype):
        note()
        m.alloc(shape, dtype)

    return {"by hand": by_hand, "ledger": ledger}


@pytest.mark.parametrize("kind", ["by hand", "ledger"])
def test_an_error_in_an_estimator_has_at_most_five_frames_of_this_package(kind):
    seen: list[list[str]] = []
    meta = declare(plain, calc_max_slices=counting_frames(seen)[kind]).meta
    meta.calc_max_slices(0, (10, 20), "float32", 14450)
    assert seen
    assert max(map(len, seen)) <= 5, max(seen, key=len)


@pytest.mark.parametrize("register", [declare, Registry().register], ids=["method", "register"])
def test_an_option_that_methods_do_not_have_is_refused_with_the_nearest(register):
    with pytest.raises(RegistrationError, match="plain: methods have no option 'output_dim'; did"):
        register(plain, pattern="all", output_dim=(3, 4))


def test_every_option_is_documented_and_kept_in_the_record():
    documented = set(re.findall(r"^(\w+) : ", inspect.getdoc(method), re.MULTILINE))
    assert documented == {*MethodOptions.__annotations__, "pattern", "registry"}
    renamed = {"calc_max_slices": "estimator", "output_dtype": "declared_dtype"}
    kept = set(MethodMeta.__dataclass_fields__)
    assert {renamed.get(name, name) for name in MethodOptions.__annotations__} <= kept


def as_httomo_documents_it(
    slice_dim: int, other_dims: tuple[int, int], dtype: np.dtype, available_memory: int, **kwargs
) -> tuple[int, np.dtype]:
    """In and out, without memory of its own: as the example in httomolibgpu's documentation."""
    in_bytes = other_dims[0] * other_dims[1] * dtype.nbytes
    out_bytes = in_bytes
    return available_memory // (in_bytes + out_bytes), dtype


@pytest.mark.parametrize("estimator", [estimate, as_httomo_documents_it])
@pytest.mark.parametrize("dtype", [np.float32(), np.float32, "float32", np.dtype("float32")])
def test_the_documented_examples_give_nine_slices_for_every_kind_of_dtype(estimator, dtype):
    meta = declare(plain, calc_max_slices=estimator).meta
    answer = meta.calc_max_slices(0, (10, 20), dtype, 14450)
    assert answer == (9, np.dtype("float32"))
    assert isinstance(answer[1], np.dtype)


def test_an_estimator_that_reads_nbytes_plans_and_runs():
    methods = Registry()
    method("projection", calc_max_slices=as_httomo_documents_it, registry=methods)(plain)
    pipeline = Pipeline.from_steps([{"method": "plain", "parameters": {"strength": 2.0}}], methods)
    scan = np.ones((40, 30, 20), np.float32)
    plan = maxslices.plan(ArraySpec((40, 30, 20), "float32"), pipeline, device="cuda", memory="2GB")
    assert plan.sections[0].steps[0].estimator == "declared"
    assert np.all(maxslices.run(scan, pipeline, device="cpu", memory="5.15MB").result == 2)


def recorder(slice_dim, other_dims, dtype, available_memory, **kwargs):
    received.append((slice_dim, other_dims, dtype, available_memory, kwargs))
    return 1, dtype


received: list[tuple] = []


@pytest.fixture(autouse=True)
def _forget():
    received.clear()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"available_memory": 16e9},
            r"must be an int of bytes, such as 16 \* 10\*\*9, not 16000000000.0 ",
        ),
        ({"available_memory": "16GB"}, r"must be an int of bytes, .* not '16GB' \(str\)"),
        ({"other_dims": (10, 20, 3)}, r"other_dims must be two positive ints, not \(10, 20, 3\)"),
        ({"other_dims": (0, 20)}, "two positive ints"),
        ({"slice_dim": 2}, "slice_dim must be 0 or 1, not 2"),
        ({"slice_dim": True}, "slice_dim must be 0 or 1, not True"),
        ({"dtype": None}, "None is not a dtype"),
        ({"device": "gpu"}, "device must be 'cuda' or 'cpu', not 'gpu'"),
        ({"strenght": 2.0}, "plain has no parameter 'strenght'; did you mean strength"),
    ],
)
def test_invalid_arguments_are_refused_before_the_estimator_is_called(arguments, message):
    usual = {"slice_dim": 0, "other_dims": (10, 20), "dtype": "f4", "available_memory": 14450}
    with pytest.raises((UsageError, ParameterError), match=message):
        declare(plain, calc_max_slices=estimate).meta.calc_max_slices(**usual | arguments)


def test_parameters_are_merged_over_the_defaults():
    def example(data, size=3, *, mode: str = "reflect", angles, flats=None): ...

    declare(example, calc_max_slices=recorder).meta.calc_max_slices(1, (5, 7), "u2", 99, size=5)
    assert received == [
        (1, (5, 7), np.dtype("uint16"), 99, {"size": 5, "mode": "reflect", "flats": None})
    ]


def test_the_arguments_of_an_estimator_may_be_given_by_name():
    arguments = {"slice_dim": 1, "other_dims": (5, 7), "dtype": "u2", "available_memory": 99}
    ledger = from_ledger(lambda m, shape, dtype: m.alloc(shape, dtype))
    for estimator in (estimate, ledger):
        meta = declare(plain, calc_max_slices=estimator).meta
        assert meta.calc_max_slices(**arguments) == meta.calc_max_slices(*arguments.values())
        assert meta.calc_max_slices(1, (5, 7), "u2", available_memory=99, device="cpu")


def test_an_estimator_may_take_a_parameter_called_dtype_behind_positional_arguments():
    def behind(slice_dim, other_dims, dtype, available_memory, /, **kwargs):
        return 1, kwargs["dtype"]

    def convert(data, dtype="uint8"): ...

    meta = declare(convert, calc_max_slices=behind).meta
    assert meta.output_dtype(0, (5, 7), "float32") == np.dtype("uint8")
    assert meta.output_dtype(0, (5, 7), "float32", dtype="uint16") == np.dtype("uint16")


@pytest.mark.parametrize(
    "name", ["self", "method", "shape", "dtype", "other_dims", "available_memory"]
)
def test_a_parameter_and_a_ledger_that_names_it_may_have_any_name(name):
    scope = {"__name__": __name__}
    exec(
        f"def needs(m, block, kind, *, {name}):\n"
        f"    for _ in range({name}):\n        m.alloc(block, kind)\n"
        f"def copied(data, *, {name}: int = 1):\n"
        f"    return [data, *(data.copy() for _ in range({name} - 1))][-1]",
        scope,
    )
    ledger = from_ledger(scope["needs"])
    copied = declare(scope["copied"], calc_max_slices=ledger, halo=lambda **kwargs: 0)
    spec = ArraySpec((60, 50, 40), np.dtype("float32"))
    assert check_trial(trial_of(copied.meta, spec, 0, "cpu", {name: 3})).ok


def test_the_device_reaches_only_an_estimator_that_names_it():
    def knows(slice_dim, other_dims, dtype, available_memory, device="cuda", **kwargs):
        return (1 if device == "cpu" else 2), dtype

    meta = declare(plain, calc_max_slices=knows).meta
    assert meta.calc_max_slices(0, (5, 7), "u2", 99, device="cpu")[0] == 1
    assert meta.calc_max_slices(0, (5, 7), "u2", 99)[0] == 2
    declare(plain, calc_max_slices=recorder).meta.calc_max_slices(0, (5, 7), "u2", 9, device="cpu")
    assert received[0][4] == {"strength": 1.0}


def test_a_ledger_receives_device_and_parameters():
    @from_ledger
    def needs(m, shape, dtype, strength):
        m.alloc_bytes(shape[0] * (int(strength) if m.device == "cpu" else 5000))

    meta = declare(plain, calc_max_slices=needs, output_dtype="float64").meta
    assert meta.calc_max_slices(0, (5, 7), "u2", 700, device="cpu", strength=7.0) == (
        100,
        np.dtype("float64"),
    )
    assert meta.calc_max_slices(0, (5, 7), "u2", 10_240)[0] == 2


def test_a_method_with_a_device_parameter_of_its_own_keeps_it():
    def network(data, device="cuda:1"): ...

    @from_ledger
    def needs(m, shape, dtype):
        m.alloc(shape, dtype)

    declare(network, calc_max_slices=recorder).meta.calc_max_slices(0, (5, 7), "u2", 99)
    assert received[0][4] == {"device": "cuda:1"}
    meta = declare(network, calc_max_slices=needs).meta
    assert meta.calc_max_slices(0, (16, 16), "u2", 5120, device="cuda:0")[0] == 10


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((-1, "f4"), "returned -1 slices for 99 bytes, a negative number"),
        ((9.0, "f4"), r"returned 9.0 \(float\) instead of an int as the number of slices"),
        ((True, "f4"), r"returned True \(bool\) instead of"),
        ((np.True_, "f4"), r"\(bool_?\) instead of"),
        ((None, "f4"), r"returned None \(NoneType\) instead of"),
        (None, r"returned None \(NoneType\): it must return \(max_slices, output dtype\)"),
        (9, r"returned 9 \(int\): it must return"),
        ([9, "f4"], r"\(list\): it must return"),
        ((9, "float33"), "calc_max_slices gives an invalid dtype: 'float33'"),
    ],
)
def test_a_wrong_answer_names_the_estimator_and_its_arguments(answer, message):
    def wrong(slice_dim, other_dims, dtype, available_memory, **kwargs):
        return answer

    meta = declare(plain, calc_max_slices=wrong).meta
    with pytest.raises(EstimatorError, match=message) as caught:
        meta.calc_max_slices(1, (5, 7), "u2", 99, strength=2.5)
    assert str(caught.value).startswith(f"{__name__}.plain: ")
    if "instead" in message or "must return" in message:
        assert "wrong(1, (5, 7), dtype('uint16'), 99, strength=2.5)" in str(caught.value)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x"), KeyError("x"), TypeError("x"), SystemExit("x")]
)
def test_an_estimator_that_raises_is_named_with_its_arguments(error):
    def failing(slice_dim, other_dims, dtype, available_memory, **kwargs):
        raise error

    meta = declare(plain, calc_max_slices=failing).meta
    with pytest.raises(
        EstimatorError, match=rf"failing\(1, .*=1.0\) raised {type(error).__name__}"
    ) as caught:
        meta.calc_max_slices(1, (5, 7), "u2", 99)
    assert caught.value.__cause__ is error


def test_a_method_without_an_estimator_says_so():
    with pytest.raises(EstimatorError, match=r"plain \(.*test_method.py:\d+\) has no memory est"):
        declare(plain).meta.calc_max_slices(0, (5, 7), "u2", 99)


# Output dtype, dims and halo


def to_uint8(slice_dim, other_dims, dtype, available_memory, *, strength):
    """Return the dtype. This estimator receives only the parameter that it names."""
    return 1, np.uint8(strength)


@pytest.mark.parametrize(
    ("declaration", "dtype"),
    [
        ({"output_dtype": "uint8"}, "uint8"),
        ({"output_dtype": np.uint8}, "uint8"),
        ({"output_dtype": lambda dtype: "uint8"}, "uint8"),
        ({"calc_max_slices": to_uint8}, "uint8"),
        ({}, "float32"),
    ],
)
def test_the_output_dtype_is_declared_or_the_estimators_or_the_inputs(declaration, dtype):
    meta = declare(plain, **declaration).meta
    assert meta.output_dtype(0, (5, 7), "float32") == np.dtype(dtype)


@pytest.mark.parametrize(
    ("halo", "pair"),
    [(3, (3, 3)), ((1, 2), (1, 2)), ([1, 2], (1, 2)), (lambda strength: int(strength), (1, 1))],
)
def test_a_halo_is_before_and_after(halo, pair):
    assert declare(plain, halo=halo).meta.halo_slices() == pair


@pytest.mark.parametrize("halo", [-1, 1.5, True, "3", (1,), (1, 2, 3), (1, -1), None])
def test_a_wrong_halo_is_refused_when_it_is_declared_or_returned(halo):
    with pytest.raises(RegistrationError, match=r"plain: halo must be"):
        declare(plain, halo=halo)
    with pytest.raises(EstimatorError, match=r"plain: halo must be"):
        declare(plain, halo=lambda: halo).meta.halo_slices()


def test_output_dims_receive_the_slice_dim_and_parameters():
    def resampled(other_dims, shape, slice_dim):
        return (shape[0], other_dims[1] + slice_dim)

    def resample(data, shape=(3, 4)): ...

    meta = declare(resample, "all", output_dims=resampled).meta
    assert meta.output_other_dims(1, (5, 7), shape=[9, 9]) == (9, 8)


@pytest.mark.parametrize("dims", [None, 5, (5,), (5, 7, 9), (5.0, 7), (0, 7), "57"])
def test_wrong_output_dims_are_named(dims):
    meta = declare(plain, output_dims=lambda other_dims: dims).meta
    with pytest.raises(
        EstimatorError, match=r"output_dims <lambda>\(\(5, 7\)\) \(.*test_method.py:\d+\) must ret"
    ):
        meta.output_other_dims(0, (5, 7))


@pytest.mark.parametrize("named", [5, [1.5], None, ["a"]])
def test_sample_slices_must_name_slices(named):
    meta = declare(plain, side_results=["centre"], sample_slices=lambda n_slices: named).meta
    if named == 5:
        assert meta.sampled_range(9) == range(5, 6)
    else:
        with pytest.raises(EstimatorError, match="must return slice indices"):
            meta.sampled_range(9)


# Registration


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: None, "it has no parameters"),
        (lambda image: None, "its first parameter is 'image'"),
        (lambda *data: None, "by position"),
        (lambda *, data: None, "by position"),
        (lambda data, size, /: None, "'size' is by position only"),
        (5, "5 is not a function"),
        (staticmethod(lambda data: data), "write @staticmethod above @method"),
        (classmethod(lambda cls, data: data), "write @staticmethod above @method"),
        (lambda data: data, r"lambda.*registry\.register"),
    ],
)
def test_a_method_that_cannot_be_called_is_refused(function, message):
    if "lambda" not in message and callable(function) and not isinstance(function, staticmethod):
        function.__name__ = "candidate"
    with pytest.raises(RegistrationError, match=message):
        declare(function)


def missing_argument(slice_dim, other_dims, dtype): ...
def swapped(other_dims, slice_dim, dtype, available_memory): ...
def names_unknown(slice_dim, other_dims, dtype, available_memory, strenght): ...
def keywords_only(*, slice_dim, other_dims, dtype, available_memory): ...
def five_positions(slice_dim, other_dims, dtype, available_memory, strength, /): ...


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (missing_argument, r"missing_argument takes 3 arguments by position: it must take \("),
        (swapped, "takes 'other_dims' instead of 'slice_dim'"),
        (names_unknown, r"'strenght' that the method does not have \(it has: strength\); did you"),
        (keywords_only, "takes 0 arguments by position"),
        (five_positions, "'strength' by position only"),
        (dict.fromkeys, "takes 2 arguments|signature"),
        (max, "max: Python cannot read its signature"),
        (7, "calc_max_slices is 7, not a function"),
        (from_ledger(lambda m, shape: None), r"it must take \(m, shape, dtype"),
        (from_ledger(lambda m, shape, dtype, other: None), "names a parameter 'other'"),
        (
            from_ledger(lambda m, shape, dtype, device: 0),
            "names a parameter 'device', which ledgers",
        ),
    ],
)
def test_an_invalid_estimator_is_refused_with_its_name(estimator, message):
    registry = Registry()
    with pytest.raises(RegistrationError, match=message) as caught:
        method("projection", calc_max_slices=estimator, registry=registry)(plain)
    assert f"{__name__}.plain: calc_max_slices" in str(caught.value)
    assert len(registry) == 0
    assert not hasattr(plain, "meta") or plain.meta.estimator is not estimator


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ({"halo": lambda size: 1}, "halo <lambda> names a parameter 'size'"),
        ({"halo": lambda device: 1}, "names a parameter 'device'"),
        ({"output_dims": lambda: (1, 1)}, "output_dims <lambda> takes 0 arguments"),
        ({"output_dims": (3, 4)}, r"output_dims is \(3, 4\), not a function"),
        ({"output_dtype": "float33"}, "output_dtype: 'float33' is not a dtype"),
        ({"output_dtype": object}, "output_dtype: arrays of dtype object"),
        ({"output_dtype": lambda: "f4"}, "output_dtype <lambda> takes 0 arguments"),
        ({"side_results": "centre", "sample_slices": lambda n: [0]}, r"write \['centre'\]"),
        ({"side_results": ["centre"]}, "need `combine`"),
        ({"side_results": ["a name"], "combine": max}, "be names, such as 'center', not 'a name'"),
        ({"side_results": 5, "combine": max}, "be names, such as 'center', not 5"),
        ({"sample_slices": lambda n: [0]}, "need `side_results`"),
        ({"combine": sum}, "need `side_results`"),
        ({"side_results": ["centre"], "combine": "mean"}, "combine is 'mean', not a function"),
        ({"records": "absent.json"}, r"records: the file /.*/absent\.json does not"),
        ({"pattern": "sinograms"}, "'sinograms' is not one of 'projection', 'sinogram', 'all'"),
        ({"takes": "photons"}, "is not a quantity: use .counts"),
        ({"gives": "volume"}, "is not a quantity"),
        ({"takes": ("counts", "same")}, "is not a quantity"),
        ({"pattern": plain}, r"plain: .* as in @method\('all'\)"),
    ],
)
def test_other_invalid_declarations_are_refused(declaration, message):
    with pytest.raises(RegistrationError, match=message):
        declare(plain, **declaration)


# What the decorator returns


def test_the_function_comes_back_unchanged_with_a_frozen_meta():
    def example(data, size=3):
        return data[:size]

    decorated = declare(example)
    assert decorated is example
    assert decorated([1, 2, 3, 4]) == [1, 2, 3]
    assert isinstance(example.meta, MethodMeta)
    with pytest.raises(AttributeError):
        example.meta.pattern = "all"
    assert repr(example.meta) == f"<projection method {__name__}.example>"
    assert hash(example.meta) == hash(example.meta)


class Rigid:
    """A callable that cannot take attributes."""

    __slots__ = ("__name__",)

    def __call__(self, data, size: int = 3):
        return data


def test_a_callable_without_attributes_is_registered():
    rigid = Rigid()
    rigid.__name__ = "rigid"
    registry = Registry()
    assert method("all", registry=registry)(rigid) is rigid
    assert not hasattr(rigid, "meta")
    assert registry["rigid"].function is rigid
    assert list(registry["rigid"].parameters) == ["size"]


def test_functions_pickle_with_their_meta():
    decorated = declare(plain, calc_max_slices=estimate)
    again = pickle.loads(pickle.dumps(decorated))
    assert again is decorated
    meta = pickle.loads(pickle.dumps(decorated.meta))
    assert meta.function is plain
    assert meta.calc_max_slices(0, (10, 20), "f4", 14450)[0] == 9


def test_the_rows_that_a_row_depends_on():
    def plain(data, size: int = 5):
        return data

    def declared(**declaration):
        return declare(plain, "all", **declaration).meta

    assert declared().rows_reached() == 0
    assert declared(halo=(1, 2)).rows_reached() == 2
    assert declared(halo=3, row_reach=lambda size: size // 2).rows_reached(size=9) == 4
    with pytest.raises(EstimatorError, match=r"row_reach must be a number of rows .* not -1"):
        declared(row_reach=lambda size: -1).rows_reached()
    with pytest.raises(RegistrationError, match="row_reach must be a number of rows"):
        declared(row_reach=-1)
