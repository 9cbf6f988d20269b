"""What estimators share: constructor arguments by name, and copies with memory of their own."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self


class Estimator:
    """Constructor arguments kept as given, under their own names."""

    _parameters: tuple[str, ...] = ()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name, as scikit-learn does."""
        return {name: getattr(self, name) for name in self._parameters}

    def set_params(self, **parameters: Any) -> Self:
        """Set constructor arguments by name; ValueError for unknown ones."""
        for name, value in parameters.items():
            if name not in self._parameters:
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}; it has "
                    f"{', '.join(self._parameters)}"
                )
            setattr(self, name, value)
        return self

    def __copy__(self) -> Self:
        """A copy has rows of its own: a deletion from one must not take them from the other."""
        return deepcopy(self)
