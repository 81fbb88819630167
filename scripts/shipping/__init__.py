"""How segue is packed, and how a package is tried: what `scripts/container-test` and `scripts/build-binary` are made of."""
