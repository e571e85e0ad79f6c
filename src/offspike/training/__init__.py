"""The parts of :func:`offspike.train.train`: recipe, data feed, optimiser, step, the run, snapshots, watching."""
