"""What a worker of a DataLoader gets, and what cannot be given to it."""

import functools
import io
import pickle
from multiprocessing import Process
from types import MethodType, SimpleNamespace

import cloudpickle
import pytest
import torch

from lightning_gaudi._core.workers import pickling as worker_pickle


def _work(dataset, collate_fn, init_fn, num_workers):
    """With the names of torch's function for workers."""


def _dump(dataset=None, collate_fn=None, init_fn=None):
    process = Process(target=_work, args=(dataset, collate_fn, init_fn, 3))
    worker_pickle.dumps(process)


def _closing(over):
    return lambda row: (row, over)


@pytest.mark.slow_but("<lambda>-collate_fn.keywords['file']", "<lambda>-collate_fn.__self__.a")
@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (
            lambda bad: {"dataset": SimpleNamespace(rows=[0, {"file": bad}])},
            "dataset.rows[1]['file']",
        ),
        (
            lambda bad: {"collate_fn": functools.partial(print, file=bad)},
            "collate_fn.keywords['file']",
        ),
        (
            lambda bad: {"collate_fn": MethodType(max, SimpleNamespace(a=bad))},
            "collate_fn.__self__.a",
        ),
        (lambda bad: {"init_fn": _closing(bad)}, "worker_init_fn -> over"),
    ],
)
def test_the_error_names_what_does_not_pickle(parts, path, tmp_path):
    with (tmp_path / "rows").open("w") as file, pytest.raises(ValueError, match="3") as caught:
        _dump(**parts(file))
    assert f"{path} does not pickle (it is an open file)" in str(caught.value)
    assert "num_workers=0" in str(caught.value)


def test_a_generator_does_not_pickle():
    with pytest.raises(
        ValueError, match=r"dataset.rows does not pickle \(cannot pickle 'generator"
    ):
        _dump(SimpleNamespace(rows=(row for row in range(3))))


def test_a_tensor_on_the_card_is_refused():
    dataset = SimpleNamespace(weight=torch.nn.Parameter(torch.ones(1, device="hpu")))
    with pytest.raises(ValueError, match=r"dataset.weight does not pickle .*a tensor on the HPU"):
        _dump(dataset)


def test_lambdas_and_local_classes_pickle():
    class Local:
        double = staticmethod(lambda x: 2 * x)

    file = io.BytesIO()
    worker_pickle._Pickler(file).dump(Local)
    assert cloudpickle.loads(file.getvalue()).double(2) == 4


def test_a_worker_knows_the_file_of_the_programs_code():
    """So that a traceback shows the line of the program that failed there."""
    file = io.BytesIO()
    worker_pickle._Pickler(file).dump(_closing(1))
    code = pickle.loads(file.getvalue()).__code__
    assert (code.co_filename, code.co_name) == (__file__, "<lambda>")
    assert code.co_firstlineno == _closing(1).__code__.co_firstlineno
