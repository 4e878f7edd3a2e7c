"""Progress bars on standard error for what takes longer than a moment. No Django here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(label: str, total_bytes: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """Yields the function that takes the bytes done so far."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not shown,
    ) as progress:
        task = progress.add_task(label, total=total_bytes)
        yield lambda done_bytes: progress.update(task, completed=min(done_bytes, total_bytes))
