"""Makes `python -m mabert` work, which torchrun needs: `torchrun --nproc-per-node 2 -m mabert pretrain ...`."""

import sys

from mabert_launch import main

sys.exit(main())
