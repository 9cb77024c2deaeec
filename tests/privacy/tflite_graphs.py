"""TFLite graphs that a hostile coordinator might send, written by hand: they need not run, since they are refused before."""

from __future__ import annotations

from typing import Any

import flatbuffers
from ai_edge_litert import schema_py_generated as schema

__all__ = ["TFLITE_ROWS", "tflite"]

FLOAT, INT = schema.TensorType.FLOAT32, schema.TensorType.INT32
Operator = tuple[str, list[int], list[int]]


def tflite(*operators: Operator, tensors: int = 4, kind: int = FLOAT, **odd: Any) -> bytes:
    """A graph: tensor 0 is its input, tensor 1 a constant, tensor 3 its output."""
    model = schema.ModelT()
    model.version = 3
    model.buffers = [schema.BufferT(), schema.BufferT()]
    model.buffers[1].data = [1, 0, 0, 0]
    codes = sorted({name for name, _, _ in operators})
    model.operatorCodes = []
    for name in codes:
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        model.operatorCodes.append(code)
    graph = schema.SubGraphT()
    graph.tensors = []
    for at in range(tensors):
        tensor = schema.TensorT()
        tensor.shape, tensor.type, tensor.buffer = [1], kind, int(at == 1)
        tensor.isVariable = at in odd.get("variables", ())
        graph.tensors.append(tensor)
    graph.operators = []
    for name, inputs, outputs in operators:
        operator = schema.OperatorT()
        operator.opcodeIndex, operator.inputs, operator.outputs = codes.index(name), inputs, outputs
        graph.operators.append(operator)
    graph.inputs, graph.outputs = [0], [3]
    model.subgraphs = [graph] * odd.get("graphs", 1)
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = b"serving_default", 0
    signature.inputs, signature.outputs = [_named(b"args_0", 0)], [_named(b"output_0", odd.get("tells", 3))]
    model.signatureDefs = [signature]
    builder = flatbuffers.Builder(256)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _named(name: bytes, tensor: int) -> Any:
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name, tensor
    return entry


ADD: Operator = ("ADD", [0, 1], [3])

TFLITE_ROWS: dict[str, bytes] = {
    **{
        f"operator {name}": tflite((name, [0], [2]), ADD)
        for name in (
            "ASSIGN_VARIABLE",
            "BIDIRECTIONAL_SEQUENCE_RNN",
            "CALL",
            "CALL_ONCE",
            "CUSTOM",
            "DELEGATE",
            "HASHTABLE",
            "HASHTABLE_FIND",
            "HASHTABLE_IMPORT",
            "IF",
            "LSTM",
            "MULTINOMIAL",
            "RANDOM_STANDARD_NORMAL",
            "RANDOM_UNIFORM",
            "READ_VARIABLE",
            "RNN",
            "STABLEHLO_COMPOSITE",
            "STABLEHLO_RNG_BIT_GENERATOR",
            "STABLEHLO_WHILE",
            "SVDF",
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            "UNIQUE",
            "VAR_HANDLE",
            "WHERE",
            "WHILE",
        )
    },
    "a variable": tflite(ADD, variables=(2,)),
    "two graphs": tflite(ADD, graphs=2),
    "a tensor that is read before it is written": tflite(("ADD", [0, 2], [3]), ("ABS", [0], [2])),
    "a tensor that nobody writes": tflite(("ADD", [0, 2], [3])),
    "a tensor that is written twice": tflite(ADD, ("ABS", [0], [3])),
    "a constant that is written": tflite(("ABS", [0], [1]), ("ADD", [0, 1], [3])),
    "an answer that nobody writes": tflite(ADD, tells=2),
    "a shape that rows decide": tflite(("RESHAPE", [0, 0], [3])),
    "a size that is worked out": tflite(("ABS", [0], [2]), ("TILE", [0, 2], [3])),
    "whole numbers divided": tflite(("DIV", [1, 0], [3]), kind=INT),
    "no graph": b"not a model",
    "nothing": b"",
    "a graph that was cut": tflite(ADD)[:120],
}
