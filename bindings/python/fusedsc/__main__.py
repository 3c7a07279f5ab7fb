"""``python -m fusedsc``."""

import sys

from .cli import main

sys.exit(main())
