"""How large a context is made. Owns the rule for what was left open; refuses to know who asks."""

from dataclasses import dataclass, replace

from app.errors import SettingsError

DEFAULT_CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a context is made for. n_context: tokens of one sequence; n_cells: of all together. 0: left open."""

    n_context: int
    n_cells: int
    n_slots: int
    n_batch: int
    n_rows: int
    n_threads: int

    def settled(self, n_context_trained: int) -> "Sizes":
        """What was left open as it suits a model. Raises SettingsError where no sequence could fill its context."""
        n_context = self.n_context or min(n_context_trained, DEFAULT_CONTEXT)
        n_cells = self.n_cells or max(2 * n_context, DEFAULT_CONTEXT)
        if n_cells < n_context:
            raise SettingsError(
                f"cache_size is {n_cells}; it must be at least ctx_size, which is {n_context}, or the longest request "
                "would never fit."
            )
        return replace(self, n_context=n_context, n_cells=-(-n_cells // 256) * 256)
