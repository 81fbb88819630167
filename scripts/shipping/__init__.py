"""How segue is packed, and how a package is tried: scripts/container-test and scripts/build-binary."""
