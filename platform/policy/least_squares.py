"""Least squares with forgetting for a handful of features, no coefficient negative. No arrays needed."""

from collections.abc import Sequence


class Moments:
    """Observations (features, value) of which each new one makes the older ones count less."""

    def __init__(self, size: int, forgetting: float) -> None:
        self._forgetting = forgetting
        self._squares = [[0.0] * (row + 1) for row in range(size)]  # lower half of the sum of x · xT
        self._products = [0.0] * size  # sum of x · value

    def add(self, features: Sequence[float], value: float) -> None:
        self.fade(self._forgetting)
        for row, feature in enumerate(features):
            if feature:
                self._products[row] += feature * value
                squares = self._squares[row]
                for column in range(row + 1):
                    squares[column] += feature * features[column]

    def fade(self, factor: float) -> None:
        """Makes all observations count this much of what they did."""
        self._products = [product * factor for product in self._products]
        self._squares = [[square * factor for square in row] for row in self._squares]

    def solve(self, pull: Sequence[float], strength: float) -> list[float]:
        """Coefficients that fit best. What the observations leave open is decided by `pull`, which counts
        like `strength` observations of each feature at 1. Coefficients that come out negative are held at
        zero, the worst first, and the others are fitted again."""
        free = list(range(len(pull)))
        while free:
            matrix = [
                [self._squares[row][column] for column in free[: at + 1]] for at, row in enumerate(free)
            ]
            for at, squares in enumerate(matrix):
                squares[at] += strength
            fitted = solve_positive(matrix, [self._products[row] + strength * pull[row] for row in free])
            worst = min(range(len(free)), key=fitted.__getitem__)
            if fitted[worst] >= 0:
                coefficients = [0.0] * len(pull)
                for at, row in enumerate(free):
                    coefficients[row] = fitted[at]
                return coefficients
            del free[worst]
        return [0.0] * len(pull)


def solve_positive(lower: list[list[float]], right: list[float]) -> list[float]:
    """Solves a symmetric positive definite system, given by its lower half, by elimination in place."""
    size = len(right)
    for pivot in range(size):
        inverse = 1.0 / lower[pivot][pivot]
        for row in range(pivot + 1, size):
            factor = lower[row][pivot] * inverse
            if factor:
                values = lower[row]
                for column in range(pivot + 1, row + 1):
                    values[column] -= factor * lower[column][pivot]
                right[row] -= factor * right[pivot]
    for row in range(size - 1, -1, -1):
        value = right[row]
        for below in range(row + 1, size):
            value -= lower[below][row] * right[below]
        right[row] = value / lower[row][row]
    return right
