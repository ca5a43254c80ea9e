"""Write every golden file again: look at the difference before you commit it."""

from tests.operator.render.cases import GOLDENS, golden
from tests.operator.render.goldens.files import FOLDER, to_yaml

for old in FOLDER.glob("*.yaml"):
    old.unlink()
for name in GOLDENS:
    (FOLDER / f"{name}.yaml").write_text(to_yaml(golden(name)), encoding="utf-8")
