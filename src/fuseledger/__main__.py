"""`python -m fuseledger`: the command line."""

from fuseledger.cli.main import main

main()
