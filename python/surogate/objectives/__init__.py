"""What models are trained for, in the DSL: docs/objectives.md."""
