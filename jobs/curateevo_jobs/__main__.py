"""`python -m curateevo_jobs STAGE --request REQUEST.json`."""

import sys

from curateevo_jobs.program import main

sys.exit(main())
