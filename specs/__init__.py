"""Shipped startup specs and their JSON Schema."""
