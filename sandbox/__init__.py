"""MiniSandbox: container-free sandboxes made of Linux namespaces over shared read-only layers.

Importing the package loads nothing: the helper process imports single modules of it.
"""
