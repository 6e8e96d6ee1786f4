from collections.abc import Sequence

__all__ = ["__version__", "answer", "execute"]

__version__: str

def execute(arguments: Sequence[str]) -> int: ...
def answer(arguments: Sequence[str]) -> tuple[str, str]: ...
