"""An operation of DeepSpeed's kind that compiles in a second."""

from __future__ import annotations

import os
from pathlib import Path

from deepspeed.ops.op_builder.builder import OpBuilder

SOURCES = "TINY_OP_SOURCES"
"""The variable that names the folder of its source; the compiling process reads it too."""

SOURCE = """
#include <Python.h>
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tiny_op", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_tiny_op() { return PyModule_Create(&definition); }
"""


class TinyBuilder(OpBuilder):
    def __init__(self) -> None:
        super().__init__("tiny_op")

    def absolute_name(self) -> str:
        return "deepspeed.ops.tiny_op"

    def sources(self) -> list[str]:
        return [str(Path(os.environ[SOURCES], "tiny_op.cpp"))]
