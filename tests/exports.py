"""A module as an ONNX program, for the tests that compare the two."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


def onnx_program(module: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
    """The exported module, for any number of rows like x; the test is skipped where a package is missing."""
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    runtime, shapes = pytest.importorskip("onnxruntime"), ({0: torch.export.Dim("batch", min=2)},)
    program = torch.onnx.export(module, (x[:4],), dynamo=True, dynamic_shapes=shapes, verbose=False)
    assert program is not None
    session = runtime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda rows: torch.from_numpy(session.run(None, {session.get_inputs()[0].name: rows.numpy()})[0])
