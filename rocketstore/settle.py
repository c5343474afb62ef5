"""Before a store is opened: lengthen what a crash cut short, set aside what does not belong."""

from __future__ import annotations

from journal.errors import DamageError
from journal.findings import Cause, Finding
from rocketstore.derived import Derived
from rocketstore.layout import Layout, Paths, extend, look, set_aside
from rocketstore.options import Options

__all__ = ["settle_files"]


def settle_files(
    options: Options, paths: Paths, derived: Derived | None, *, crashed: bool
) -> tuple[Layout, list[Finding]]:
    """Look at the directory; lengthen what a crash cut short, set aside what ``repair`` may."""
    fs = options.fs
    sizes = derived.sizes if derived is not None else None
    layout = look(fs, paths, options, sizes)
    if not layout.strangers:
        return layout, []
    findings: list[Finding] = []
    for stranger in layout.strangers:
        cause, consequence = Cause.DAMAGE, "not used"
        if not options.read_only:
            synced = derived is not None and stranger.path.startswith(paths.commitlog)
            durable = synced and derived is not None and stranger.start < derived.offset
            if crashed and stranger.is_short and not durable:
                extend(fs, stranger)
                cause, consequence = Cause.CRASH, "lengthened with zeros"
            elif options.repair:
                consequence = f"set aside in {set_aside(fs, paths, stranger.path)}"
            else:
                raise DamageError(stranger.path, 0, f"{stranger.what} (repair=True sets it aside)")
        findings.append(Finding(stranger.path, 0, 0, cause, stranger.what, consequence))
    return look(fs, paths, options, sizes) if not options.read_only else layout, findings
