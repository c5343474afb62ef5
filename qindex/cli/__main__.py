"""``python -m qindex.cli``: the same as ``qindex``."""

from __future__ import annotations

import sys

from qindex.cli.app import main

sys.exit(main())
