"""The manifests of `deploy/kubernetes` say nothing that Kubernetes or an operator does not know.

Kubernetes' own kinds are compared with its schemas (kubernetes-validate), those of the operators
with the models of their clients (kubeflow-training, kubeflow-trainer-api), and the pods of each
kind once more with Kubernetes'. Of MPIJob v2beta1 there is no model: its fields stand below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_gaudi.strategies.jobs import JOB_ID

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
KUBERNETES = "1.35"
MANIFESTS = [path for path in sorted(FOLDER.glob("*/*.yaml")) if path.name != "kustomization.yaml"]
JOBS = [path for path in MANIFESTS if path.parent.name != "base"]
MPI_JOB = {
    "launcherCreationPolicy",
    "mpiImplementation",
    "mpiReplicaSpecs",
    "runLauncherAsWorker",
    "runPolicy",
    "slotsPerWorker",
    "sshAuthMountPath",
}
"""Of its spec. Source: mpi-operator 0.6, `deploy/v2beta1/mpi-operator.yaml`."""


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def _pods(value: Any) -> Iterator[dict[str, Any]]:
    """The pod specs within a manifest."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for each in value.values():
            yield from _pods(each)


def _unknown(value: Any, kind: str, models: Any, where: str = "") -> list[str]:
    """Fields that a model of the operator's client does not have."""
    if kind.startswith(("list[", "dict(")):
        inner = re.sub(r"^(list\[|dict\(str, )|[\])]$", "", kind)
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return [e for name, each in parts for e in _unknown(each, inner, models, f"{where}/{name}")]
    model = getattr(models, kind, None)
    if model is None or not isinstance(value, dict):
        return []
    kinds = {name: model.openapi_types[field] for field, name in model.attribute_map.items()}
    found = [f"{where}/{name}" for name in value if name not in kinds]
    for name in value.keys() & kinds.keys():
        found += _unknown(value[name], kinds[name], models, f"{where}/{name}")
    return found


def _check(manifest: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    kind = manifest["kind"]
    if kind == "PyTorchJob":
        models = pytest.importorskip("kubeflow.training.models")
        assert _unknown(manifest, "KubeflowOrgV1PyTorchJob", models) == []
    elif kind == "TrainJob":
        models = pytest.importorskip("kubeflow_trainer_api.models")
        found = models.TrainerV1alpha1TrainJob.from_dict(manifest)
        assert found.to_dict() == manifest  # what it does not know is not in it
    elif kind == "MPIJob":
        assert manifest["spec"].keys() <= MPI_JOB
    else:
        validate(manifest, KUBERNETES, strict=True)
    for pod in _pods(manifest):
        header = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}}
        validate({**header, "spec": pod}, KUBERNETES, strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_valid(path: Path) -> None:
    _check(_read(path))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_a_field_that_is_misspelt_would_be_found(path: Path) -> None:
    text = path.read_text()
    for right, wrong in (("command:", "comand:"), ("numProcPerNode: 8", "numProcPerNode: eight")):
        if right in text:
            with pytest.raises(Exception, match=r"comand|numProcPerNode|num_proc_per_node|assert"):
                _check(yaml.safe_load(text.replace(right, wrong)))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_a_job_is_known_again_in_a_new_pod(path: Path) -> None:
    (variable,) = {
        yaml.safe_dump(each) for each in _variables(_read(path)) if each["name"] == JOB_ID
    }
    assert "fieldPath: metadata.labels[" in variable


def _variables(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield from value.get("env", ())
        for each in value.values():
            yield from _variables(each)
    elif isinstance(value, list):
        for each in value:
            yield from _variables(each)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/kustomization.yaml")), ids=str)
def test_what_a_kustomization_names_is_there(path: Path) -> None:
    found = _read(path)
    assert found["kind"] == "Kustomization"
    for name in found["resources"]:
        place = path.parent / name
        assert place.is_file() or (place / "kustomization.yaml").is_file()
