"""Which KV pages are free. A page is a number; its bytes live in the engine's KV tensor."""

from collections.abc import Iterable

MAX_PAGE_SIZE = 64


class BrokenInvariant(AssertionError):
    """A structure of the cache contradicts its own laws. Always a bug in chatd, never bad input."""


def require(holds: bool, what: str) -> None:
    """Raise `BrokenInvariant` unless ``holds`` (kept under ``python -O``, unlike assert)."""
    if not holds:
        raise BrokenInvariant(what)


class PagePool:
    """Pages ``0 .. num_pages - 1`` of ``page_size`` token slots each, handed out most recently freed first.

    The pool knows only free and not free; who owns a page that is not free is the cache's business.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a pool needs at least one page, not {num_pages}")
        if not (1 <= page_size <= MAX_PAGE_SIZE and page_size & (page_size - 1) == 0):
            raise ValueError(f"page size must be a power of two from 1 to {MAX_PAGE_SIZE}, not {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))
        self._is_free = bytearray(b"\x01" * num_pages)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_pages(self) -> frozenset[int]:
        """The free pages now, as a copy."""
        return frozenset(self._free)

    def alloc(self, num_pages: int) -> list[int] | None:
        """Take ``num_pages`` pages, or none at all: then the answer is None and nothing changed."""
        if num_pages < 0:
            raise ValueError(f"cannot take {num_pages} pages")
        start = len(self._free) - num_pages
        if start < 0:
            return None
        pages = self._free[start:]
        del self._free[start:]
        for page in pages:
            self._is_free[page] = 0
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back. A page that is free already, or foreign, is a `BrokenInvariant`."""
        for page in pages:
            require(0 <= page < self.num_pages, f"page {page} is not of this pool")
            require(not self._is_free[page], f"page {page} was freed twice")
            self._is_free[page] = 1
            self._free.append(page)

    def check(self) -> None:
        """The free list and the free marks tell the same story."""
        require(len(set(self._free)) == len(self._free), "a page is on the free list twice")
        marked = {page for page, free in enumerate(self._is_free) if free}
        require(marked == set(self._free), "free list and free marks differ")
