"""What is rendered, as files to read. `python -m tests.operator.render.goldens` writes them again."""
