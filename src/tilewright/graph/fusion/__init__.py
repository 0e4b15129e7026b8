"""Which nodes of a graph share a kernel, and which are computed in several: steps of `fuse`."""
