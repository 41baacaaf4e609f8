"""What is wrong with a store."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing wrong: the file, the place inside it, what was expected there and what was found."""

    file: str
    place: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: expected {self.expected}, found {self.found}"
