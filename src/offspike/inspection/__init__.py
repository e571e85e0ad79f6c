"""A user's model, looked into: its ReLUs and pools, what spikes cannot follow, whether samples stay apart.

:func:`offspike.surgery.audit` puts it together, and :func:`offspike.prepare.prepare` acts on it.
"""
