"""Which slots of the backend's memory are taken, and how many cells they hold between them.

Owns the count; the backend owns the cells. A fork shares its first cells with its source, so that the count follows
a tree: a node is a run of cells that the same slots hold. Refuses to know what the cells are for.
"""

from collections.abc import Iterable

from app.engine.backend import Memory


class _Node:
    """A run of cells. `n_holders` counts the nodes and slots that hang on it."""

    __slots__ = ("length", "n_holders", "parent")

    def __init__(self, parent: "_Node | None", length: int = 0) -> None:
        self.parent = parent
        self.length = length
        self.n_holders = 1


class Slots:
    """Hands out slots, and knows how many cells are free. A slot's own node is never shared: it can always grow."""

    def __init__(self, memory: Memory, n_slots: int, n_cells: int) -> None:
        self._memory = memory
        self._idle = list(range(n_slots))[::-1]
        self._tips: dict[int, _Node] = {}
        self.n_cells = n_cells
        self.n_used = 0

    @property
    def n_free(self) -> int:
        """Cells that no slot holds."""
        return self.n_cells - self.n_used

    @property
    def n_idle(self) -> int:
        """Slots that are not taken."""
        return len(self._idle)

    def take(self) -> int:
        """An empty slot. Raises IndexError where none is idle."""
        slot = self._idle.pop()
        self._tips[slot] = _Node(None)
        return slot

    def grow(self, slot: int, n_tokens: int) -> None:
        """Count the cells of tokens that were read into a slot."""
        self._tips[slot].length += n_tokens
        self.n_used += n_tokens

    def cut(self, slot: int, n_tokens: int) -> None:
        """Forget the last `n_tokens` tokens of a slot, which no other slot holds."""
        tip = self._tips[slot]
        assert tip.length >= n_tokens, "what others hold cannot be cut"
        self._memory.cut(slot, self.length(slot) - n_tokens)
        tip.length -= n_tokens
        self.n_used -= n_tokens

    def restore(self, slot: int) -> None:
        """Let the memory forget what it holds of a slot beyond what has been counted."""
        self._memory.cut(slot, self.length(slot))

    def length(self, slot: int) -> int:
        """Tokens that a slot holds, shared ones included."""
        total, node = 0, self._tips.get(slot)
        while node:
            total, node = total + node.length, node.parent
        return total

    def n_held(self, slots: Iterable[int]) -> int:
        """Cells that these slots hold between them."""
        nodes: set[_Node] = set()
        for slot in slots:
            node = self._tips.get(slot)
            while node and node not in nodes:
                nodes.add(node)
                node = node.parent
        return sum(node.length for node in nodes)

    def fork(self, source: int, n_tokens: int) -> int:
        """A slot that shares the first `n_tokens` tokens of `source`. Raises IndexError where none is idle."""
        parent, slot = self._split(source, n_tokens), self._idle.pop()
        self._tips[slot] = _Node(parent)
        self._memory.fork(source, slot, n_tokens)
        return slot

    def _split(self, source: int, n_tokens: int) -> _Node:
        """The node that ends at `n_tokens` in `source`, made where there is none, with one more holder."""
        excess = self.length(source) - n_tokens
        assert excess >= 0, "a fork takes no more tokens than its source holds"
        node = self._tips[source]
        while node.parent is not None and excess >= node.length:
            excess, node = excess - node.length, node.parent
            if excess == 0:
                node.n_holders += 1
                return node
        upper = _Node(node.parent, node.length - excess)
        upper.n_holders = 2
        node.parent, node.length = upper, excess
        return upper

    def drop(self, slot: int) -> None:
        """Give a slot back, and the cells that it alone holds."""
        node: _Node | None = self._tips.pop(slot)
        while node:
            node.n_holders -= 1
            if node.n_holders:
                break
            self.n_used -= node.length
            node = node.parent
        self._memory.drop(slot)
        self._idle.append(slot)
