"""`python -m app` is `segue`."""

from app.cli import main

main()
