"""CuPy's memory pool in pure Python: chunks that are split, and that it cannot always use again."""

from __future__ import annotations

from bisect import bisect_left, insort

from maxslices.core.allocators import round_to_granule


class Chunk:
    """Part of a piece of memory from the driver."""

    def __init__(self, n_bytes, before=None, after=None):
        self.n_bytes, self.before, self.after, self.is_free = n_bytes, before, after, False


class PoolOfPieces:
    """``SingleDeviceMemoryPool`` of CuPy's memory.pyx: the smallest free chunk that is large enough
    is split, neighbours that are free are joined, and only whole pieces go back to the driver."""

    def __init__(self, limit_bytes):
        self.limit_bytes, self.total_bytes = limit_bytes, 0
        self.free_chunks = []  # (bytes, number, chunk), by size

    def malloc(self, n_bytes):
        n_bytes = round_to_granule(n_bytes)
        i = bisect_left(self.free_chunks, (n_bytes,))
        if i < len(self.free_chunks):
            chunk = self._take(self.free_chunks[i][2])
            if chunk.n_bytes > n_bytes:
                rest = Chunk(chunk.n_bytes - n_bytes, chunk, chunk.after)
                if rest.after:
                    rest.after.before = rest
                chunk.n_bytes, chunk.after = n_bytes, rest
                self._put(rest)
            return chunk
        if self.total_bytes + n_bytes > self.limit_bytes:
            for *_, chunk in list(self.free_chunks):
                if not (chunk.before or chunk.after):
                    self.total_bytes -= self._take(chunk).n_bytes
        if self.total_bytes + n_bytes > self.limit_bytes:
            raise MemoryError
        self.total_bytes += n_bytes
        return Chunk(n_bytes)

    def free(self, chunk):
        if chunk.after and chunk.after.is_free:
            self._join(chunk, self._take(chunk.after))
        if chunk.before and chunk.before.is_free:
            chunk = self._join(self._take(chunk.before), chunk)
        self._put(chunk)

    def _join(self, first, second):
        first.n_bytes, first.after = first.n_bytes + second.n_bytes, second.after
        if first.after:
            first.after.before = first
        return first

    def _put(self, chunk):
        chunk.is_free = True
        insort(self.free_chunks, (chunk.n_bytes, id(chunk), chunk))

    def _take(self, chunk):
        chunk.is_free = False
        self.free_chunks.remove((chunk.n_bytes, id(chunk), chunk))
        return chunk
