"""A network looked at from every side: answers by sample, neurons by step, and everything that was found."""
