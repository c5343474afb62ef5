"""``python -m qindex.cli``: the same as ``qindex``."""

from __future__ import annotations

import sys

from qindex.cli.start import main

sys.exit(main())
