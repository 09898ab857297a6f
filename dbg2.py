import asyncio, sys, tempfile, time
from pathlib import Path
from tests.faults.stage import staging
async def main():
  for tr, proxied in (("stdio",False),("http",False),("http",True)):
    async with staging(tr, Path(tempfile.mkdtemp()), proxied=proxied) as on:
        await on.times(5)
        t=sorted(await on.times(60)); print(tr, proxied, "near", t[30]*1e3, t[58]*1e3)
        t=[]
        for _ in range(40):
            b=time.monotonic(); a=await on.call("echo"); t.append(a.at-b)
        t=sorted(t); print(tr, proxied, "bad", t[20]*1e3, t[38]*1e3, flush=True)
asyncio.run(asyncio.wait_for(main(),60))
