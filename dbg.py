import asyncio, sys, tempfile, logging
from pathlib import Path
from tests.faults.harness import FAULTS, observe
from tests.faults import witness
orig=witness.Witness.hear
def hear(self,w):
    if w.get("tool")!="ping": print(w, flush=True)
    orig(self,w)
witness.Witness.hear=hear
f=[f for f in FAULTS if sys.argv[1] in f.what and f.transport==sys.argv[2]][0]
print(asyncio.run(asyncio.wait_for(observe(f, Path(tempfile.mkdtemp())),15)))
