"""The attention masks, made once in the graph from the tree mask and the past lengths.

Owns which key a column sees; knows nothing of heads, layers or weights.

    past_lens [B] ------ keys - past ----> relative [B, S] --+-- < 0 ---------------------> past [B, 1, S]
                                                             +-- clipped to 0 .. T - 1 ---> column [B, S]
    tree_mask [B, T, T] -- gathered by column --> [B, T, S] -- and where 0 <= relative < T --> tree
    seen = past or tree;  windowed = seen and position of column - position of key < window
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sssd.export.nodes import Attr, Nodes


@dataclass(slots=True)
class Masks:
    """The masks of one graph; each is built when it is first asked for."""

    nodes: Nodes
    cache: str  # any past_k: its third dimension is S
    made: dict[int | None, str] = field(default_factory=dict)  # window -> bool [B, 1, T, S]
    ages: str = ""  # int64 [B, T, S] position of column - position of key; made with the first window

    def mask(self, window: int | None) -> str:
        """Name of the mask, bool [B, 1, T, S], for layers of this window."""
        if not self.made:
            self._seen()
        if window not in self.made:
            self.made[window] = self._windowed(window)
        return self.made[window]

    def _seen(self) -> None:
        n = self.nodes
        n.op("Shape", [self.cache], "mask/S", Attr("start", 2), Attr("end", 3))
        n.op("Shape", ["input_ids"], "mask/B_T")
        n.op("Shape", ["input_ids"], "mask/T", Attr("start", 1), Attr("end", 2))
        n.op("Squeeze", ["mask/S"], "mask/S_scalar")
        n.op("Range", [n.int64(0), "mask/S_scalar", n.int64(1)], "mask/keys")
        n.op("Unsqueeze", ["past_lens", n.int64s(1)], "mask/past_lens")
        n.op("Sub", ["mask/keys", "mask/past_lens"], "mask/relative")
        n.op("Less", ["mask/relative", n.int64(0)], "mask/is_past")
        n.op("Less", ["mask/relative", "mask/T"], "mask/before_end")
        n.op("Not", ["mask/is_past"], "mask/not_past")
        n.op("And", ["mask/not_past", "mask/before_end"], "mask/is_column")
        n.op("Sub", ["mask/T", n.int64(1)], "mask/last")
        n.op("Max", ["mask/relative", n.int64(0)], "mask/from_zero")
        n.op("Min", ["mask/from_zero", "mask/last"], "mask/column")
        n.op("Unsqueeze", ["mask/column", n.int64s(1)], "mask/column_row")
        n.op("Concat", ["mask/B_T", "mask/S"], "mask/B_T_S", Attr("axis", 0))
        n.op("Expand", ["mask/column_row", "mask/B_T_S"], "mask/columns")
        # GatherElements of booleans is not everywhere; the cast is over B * T * T values only
        n.op("Cast", ["tree_mask"], "mask/tree_float", Attr("to", 1))
        n.op("GatherElements", ["mask/tree_float", "mask/columns"], "mask/gathered", Attr("axis", 2))
        n.op("Cast", ["mask/gathered"], "mask/ancestor", Attr("to", 9))
        n.op("Unsqueeze", ["mask/is_column", n.int64s(1)], "mask/is_column_row")
        n.op("Unsqueeze", ["mask/is_past", n.int64s(1)], "mask/is_past_row")
        n.op("And", ["mask/ancestor", "mask/is_column_row"], "mask/tree")
        n.op("Or", ["mask/tree", "mask/is_past_row"], "mask/seen")
        self.made[None] = n.op("Unsqueeze", ["mask/seen", n.int64s(1)], "mask/all")

    def _windowed(self, window: int | None) -> str:
        assert window is not None
        n, path = self.nodes, f"mask/window_{window}"
        if not self.ages:
            self.ages = self._ages()
        n.op("Less", [self.ages, n.int64(window)], f"{path}/near")
        n.op("And", ["mask/seen", f"{path}/near"], f"{path}/seen")
        return n.op("Unsqueeze", [f"{path}/seen", n.int64s(1)], path)

    def _ages(self) -> str:
        """A past key's position is its index; a column's is its position id."""
        n = self.nodes
        n.op("GatherElements", ["position_ids", "mask/column"], "mask/column_positions", Attr("axis", 1))
        n.op("Where", ["mask/is_past", "mask/keys", "mask/column_positions"], "mask/key_positions")
        n.op("Unsqueeze", ["mask/key_positions", n.int64s(1)], "mask/key_positions_row")
        n.op("Unsqueeze", ["position_ids", n.int64s(2)], "mask/positions")
        return n.op("Sub", ["mask/positions", "mask/key_positions_row"], "mask/ages")
