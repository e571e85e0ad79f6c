"""The forward pass made ready to run fast: a plan read off the graph, CUDA graphs, and layers that suit their input."""
