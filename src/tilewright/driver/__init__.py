"""From a model to a native module: the pipeline, the cache of kernels, the workers."""
