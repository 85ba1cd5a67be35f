"""`python -m restoke`, where the `restoke` command is not on the path."""

from __future__ import annotations

import sys

from restoke.cli import main

sys.exit(main())
