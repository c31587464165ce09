"""How a stored weight becomes nodes: linear layers, the embedding and the LM head.

Owns the ONNX form of every way a weight is stored; knows nothing of the layers it serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sssd.export.nodes import Attr, Nodes
from sssd.export.storage import EMBEDDING, Blockwise, ByOutput, Plain, Weight
from sssd.export.weights import Placed

_FLOAT = 1  # onnx.TensorProto.FLOAT
_CODES = ("uint8", "uint4", "int8", "int4")


@dataclass(slots=True)
class Weights:
    """The stored weights as operands of one graph."""

    nodes: Nodes
    weights: Mapping[str, Weight]
    placed: Mapping[str, Placed]
    _block_sums: dict[tuple[str, int], str] = field(default_factory=dict)  # (x, block) -> sums of x over its blocks

    def vector(self, name: str) -> str:
        """A norm's or bias's values, float32 [n]."""
        return self.nodes.floats(self.placed[name])

    def linear(self, x: str, name: str, path: str) -> str:
        """x [.., in] times the weight [out, in], transposed: float32 [.., out]."""
        n, storage = self.nodes, self.weights[name].storage
        product = n.op("MatMul", [x, self._matrix(name, path)], f"{path}/product")
        if not isinstance(storage, Blockwise) or not storage.offsets:
            return product
        offsets = self._columns(f"{name}.offsets", name, path)
        moved = n.op("MatMul", [self._sums(x, name, storage.block), offsets], f"{path}/offset_product")
        return n.op("Add", [product, moved], f"{path}/sum")

    def _matrix(self, name: str, path: str) -> str:
        """The weight as MatMul's right operand, float32 [in, out]; a runtime folds the constant parts."""
        n, storage = self.nodes, self.weights[name].storage
        if isinstance(storage, Blockwise):
            parts = (f"int{storage.bits}", "scales", *([] if storage.form.signed else ["zeros"]))
            operands = [self._columns(f"{name}.{part}", name, path) for part in parts]
            axis, block = Attr("axis", 0), Attr("block_size", storage.block)
            return n.op("DequantizeLinear", operands, f"{path}/weight", axis, block)
        if isinstance(storage, ByOutput):
            operands = [n.stored(self.placed[f"{name}.float8"]), n.floats(self.placed[f"{name}.scales"])]
            return n.op("DequantizeLinear", operands, f"{path}/weight", Attr("axis", 1))
        return self._columns(name, name, path)

    def _columns(self, tensor: str, name: str, path: str) -> str:
        """A stored tensor with the outputs last."""
        placed = self.placed[tensor]
        stored = self.nodes.stored(placed) if placed.kind in _CODES else self.nodes.floats(placed)
        if not self.weights[name].by_rows:
            return stored
        part = tensor.removeprefix(name) or ".weight"
        return self.nodes.op("Transpose", [stored], f"{path}/columns{part}", Attr("perm", (1, 0)))

    def _sums(self, x: str, name: str, block: int) -> str:
        """Sums of x over its blocks, float32 [.., in / block]; shared by every linear layer that reads x."""
        if (x, block) not in self._block_sums:
            n, inputs = self.nodes, self.weights[name].shape[1]
            shape = n.int64s(0, 0, inputs // block, block)
            grouped = n.op("Reshape", [x, shape], f"{x}/blocks")
            sums = n.op("ReduceSum", [grouped, n.int64s(-1)], f"{x}/block_sums", Attr("keepdims", 0))
            self._block_sums[x, block] = sums
        return self._block_sums[x, block]

    def embedding(self, ids: str, path: str, *, name: str = EMBEDDING) -> str:
        """Rows of an embedding, float32 [B, T, H]."""
        n, storage = self.nodes, self.weights[name].storage
        if isinstance(storage, Plain):
            rows = n.op("Gather", [n.stored(self.placed[name]), ids], f"{path}/rows")
            return rows if storage.kind == "float32" else n.op("Cast", [rows], path, Attr("to", _FLOAT))
        assert isinstance(storage, Blockwise)
        assert storage.bits == 8
        assert not storage.form.signed
        codes, scales, zeros = (self._block_rows(name, part, ids, path) for part in ("int8", "scales", "zeros"))
        centred = n.op("Sub", [codes, zeros], f"{path}/centred")
        values = n.op("Mul", [centred, scales], f"{path}/scaled")
        if storage.offsets:
            values = n.op("Add", [values, self._block_rows(name, "offsets", ids, path)], f"{path}/moved")
        return n.op("Reshape", [values, n.int64s(0, 0, self.weights[name].shape[1])], path)

    def _block_rows(self, name: str, part: str, ids: str, path: str) -> str:
        """Rows of one part of a blockwise embedding by block: float32 [B, T, blocks, block or 1]."""
        n, placed = self.nodes, self.placed[f"{name}.{part}"]
        rows = n.op("Gather", [n.stored(placed), ids], f"{path}/{part}/rows")
        if placed.kind != "float32":
            rows = n.op("Cast", [rows], f"{path}/{part}/float", Attr("to", _FLOAT))
        n_blocks = self.placed[f"{name}.scales"].dims[1]
        return n.op("Reshape", [rows, n.int64s(0, 0, n_blocks, -1)], f"{path}/{part}")
