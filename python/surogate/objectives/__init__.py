"""Training objectives in the DSL: docs/objectives.md."""
