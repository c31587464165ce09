"""The KV cache of all slots in device memory. Owns its layout and what moves inside it; knows no graph.

    [2 * layers, slots, Hkv, S, D]        (k of layer 0, v of layer 0, k of layer 1, ...)

so that consecutive slots of a layer are one contiguous tensor, at an address of its own, and a prompt is read right
where its slot is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sssd.engines.device import Device, Grid, Pieces, Tensor, item_bytes
from sssd.engines.kernels import COMMIT, COPY
from sssd.errors import OutOfMemory
from sssd.spec import EngineSpec

_THREADS = 64  # of a commit's block: the words of one token of one head
_COPY_THREADS = 256
_COPY_PIECES = 8  # blocks that share one head's copy


@dataclass(frozen=True, slots=True)
class Keeps:
    """Which columns of each row a commit keeps, in device memory."""

    past_lens: int  # address of int64 [B]
    keep: int  # address of int32 [B, width]
    n_keep: int  # address of int32 [B]
    rows: int
    width: int


class Slab:
    """KV of `n_slots` slots of `cache_len` tokens. Raises OutOfMemory, which says how many slots would fit."""

    def __init__(self, device: Device, spec: EngineSpec, *, n_slots: int, cache_len: int, kv_dtype: str) -> None:
        self._device = device
        self._parts = 2 * spec.n_layers
        self._heads = spec.n_kv_heads
        self._head_dim = spec.head_dim
        self._token = spec.head_dim * item_bytes(kv_dtype)  # bytes of one token of one head
        assert self._token % 4 == 0, "the kernels move 32-bit words"
        self._dtype = kv_dtype
        self.n_slots = n_slots
        self.cache_len = cache_len
        self._address = self._allocate(cache_len)
        device.zero(self._address, self.n_bytes)  # what is masked is multiplied by 0, which NaN survives

    @property
    def n_bytes(self) -> int:
        """Bytes of the cache."""
        return self._parts * self.n_slots * self.slot_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of one part: how far the addresses of two slots are apart."""
        return self._slot_bytes(self.cache_len)

    def tensors(self, first_slot: int, rows: int) -> Iterator[Tensor]:
        """The slots from `first_slot` on, of every part, as past_* and at the same address as present_*."""
        shape = (rows, self._heads, self.cache_len, self._head_dim)
        for part in range(self._parts):
            address = self._address + (part * self.n_slots + first_slot) * self.slot_bytes
            for when in ("past", "present"):
                yield Tensor(f"{when}_{'kv'[part % 2]}_{part // 2}", self._dtype, shape, address)

    def commit(self, first_slot: int, keeps: Keeps) -> None:
        """Enqueue moving each row's kept columns to right behind its past."""
        grid = Grid(self._heads, keeps.rows, self._parts)
        where = (first_slot, self.n_slots, self.cache_len, self._token // 4)
        args = (self._address, keeps.past_lens, keeps.keep, keeps.n_keep, keeps.width, *where)
        self._device.launch(COMMIT.name, grid, _THREADS, args)

    def copy_prefix(self, src: int, dst: int, n: int) -> None:
        """Enqueue copying the first n tokens of one slot to another."""
        grid = Grid(self._heads, _COPY_PIECES, self._parts)
        args = (self._address, src, dst, n, self.n_slots, self.cache_len, self._token // 4)
        self._device.launch(COPY.name, grid, _COPY_THREADS, args)

    def grow(self, cache_len: int) -> None:
        """Make room for `cache_len` tokens a slot; addresses change. Both caches are held for a moment."""
        grown = self._allocate(cache_len)
        count = self._parts * self.n_slots * self._heads
        old, new = self.cache_len * self._token, cache_len * self._token
        self._device.zero(grown, count * new)
        self._device.copy(Pieces(grown, new), Pieces(self._address, old), n_bytes=old, count=count)
        self._device.synchronize()
        self._device.free(self._address)
        self._address, self.cache_len = grown, cache_len

    def _slot_bytes(self, cache_len: int) -> int:
        return self._heads * cache_len * self._token

    def _allocate(self, cache_len: int) -> int:
        one = self._parts * self._slot_bytes(cache_len)
        free = self._device.memory().free
        try:
            if self.n_slots * one > free:
                raise OutOfMemory("not tried")
            return self._device.allocate(self.n_slots * one)
        except OutOfMemory:
            raise OutOfMemory(
                f"the KV cache needs {self.n_slots * one >> 20} MiB of {self._device.name} for {self.n_slots} slots of "
                f"{cache_len} tokens; {free >> 20} MiB are free, {free // one} slots fit: use fewer slots, or export "
                "with a smaller --max-len"
            ) from None
