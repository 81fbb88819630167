"""Models by name: what there is to get, how it is had, where it lies, and what a file says of itself.

`entries` reads the catalogue, `sources` finds what a source names, `fetch` gets it into the `store`, `description`
reads a file. Knows nothing of serving: a model that lies in the folder is a path.
"""
